"""Row kernels that quantise, and that apply the scales of a product, against float64; twins and Triton alike."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from kernels.elementwise import (
    qk_norm_rope_write,
    quantise,
    rms_norm,
    silu_mul,
    triton_qk_norm_rope_write,
    triton_quantise,
    triton_rms_norm,
    triton_silu_mul,
)
from kernels.linear.fp8_product import rowwise, tensorwise
from kernels.linear.scaled import FP8_MAX
from tests.kernels.device import CUDA_BFLOAT16, EVERYWHERE, INTERPRETER, error, tolerance
from tests.kernels.fp8 import assert_quantised, exact, scaled_product

KERNELS = pytest.mark.parametrize("kind", ["twin", "triton"])
QUANTISE = {"twin": quantise, "triton": triton_quantise}
RMS_NORM = {"twin": rms_norm, "triton": triton_rms_norm}
SILU_MUL = {"twin": silu_mul, "triton": triton_silu_mul}
ROTARY = {"twin": qk_norm_rope_write, "triton": triton_qk_norm_rope_write}


def rows_of(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows of very different size, the last of them zero."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=random) * 10.0 ** torch.arange(-2, shape[0] - 2)[:, None]
    x[-1] = 0
    return x.to(dtype)


@KERNELS
@EVERYWHERE
@pytest.mark.parametrize("shape", [(5, 72), (2, 16), (3, 2049)])
def test_each_row_is_rounded_to_float8_by_its_own_scale(
    kind: str, device: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = rows_of(*shape, dtype=dtype)
    assert_quantised(QUANTISE[kind].quantise(x.to(device)), x.double())


@KERNELS
@EVERYWHERE
def test_what_float8_has_exactly_stays_exact(kind: str, device: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[448.0, -416.0, 0.5, 2.0**-9, -(2.0**-6), 17.0 - 1.0, 0.0, -448.0]])
    found = QUANTISE[kind].quantise(x.to(device, dtype))
    assert found.scale.tolist() == [1.0]
    assert torch.equal(found.values.cpu().float(), x)


@KERNELS
@EVERYWHERE
@pytest.mark.parametrize("shape", [(4, 72), (2, 16), (3, 520)])
@pytest.mark.parametrize("residual", [False, True])
def test_rms_norm_quantises_what_it_normed(
    kind: str, device: str, dtype: torch.dtype, shape: tuple[int, ...], residual: bool
) -> None:
    random = torch.Generator().manual_seed(1)
    x, delta = (torch.randn(shape, generator=random).to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1], generator=random).to(dtype)
    found, h = RMS_NORM[kind].rms_norm_fp8(
        x.to(device), weight.to(device), 1e-6, delta.to(device) if residual else None
    )
    expected = (x + delta if residual else x).double()
    assert error(h, expected) < tolerance(dtype)
    normed = h.cpu().double() / (h.cpu().double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert_quantised(found, normed)


@KERNELS
@EVERYWHERE
@pytest.mark.parametrize("shape", [(4, 72), (2, 16)])
def test_rms_norm_applies_the_scales_of_a_product_before_it_adds(
    kind: str, device: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    random = torch.Generator().manual_seed(1)
    product = scaled_product(*shape, dtype, device)
    residual, weight = (torch.randn(size, generator=random).to(dtype) for size in (shape, shape[-1:]))
    expected = exact(product) + residual.double()
    out, h = RMS_NORM[kind].rms_norm(product, weight.to(device), 1e-6, residual.to(device))
    assert error(h, expected) < tolerance(dtype)
    assert h.dtype == out.dtype == dtype
    normed = h.cpu().double() / (h.cpu().double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert error(out, normed) < tolerance(dtype)
    quantised, same = RMS_NORM[kind].rms_norm_fp8(product, weight.to(device), 1e-6, residual.to(device))
    assert torch.equal(same, h)
    assert_quantised(quantised, normed)


@KERNELS
@EVERYWHERE
@pytest.mark.parametrize(("rows", "size"), [(3, 50), (2, 2500)])
@pytest.mark.parametrize("scaled", [False, True])
def test_silu_mul_scales_gates_and_quantises(
    kind: str, device: str, dtype: torch.dtype, rows: int, size: int, scaled: bool
) -> None:
    product = scaled_product(rows, 2 * size, dtype, device)
    plain = product.values / 1e3
    given = product if scaled else plain
    gate, up = (exact(product) if scaled else plain.cpu().double()).chunk(2, dim=1)
    expected = gate * gate.sigmoid() * up
    assert error(SILU_MUL[kind].silu_mul(given), expected) < tolerance(dtype)
    assert_quantised(SILU_MUL[kind].silu_mul_fp8(given), expected)


@KERNELS
@EVERYWHERE
@pytest.mark.parametrize("norm", [False, True])
def test_queries_keys_and_values_are_scaled_before_norm_and_rotation(
    kind: str, device: str, dtype: torch.dtype, norm: bool
) -> None:
    """A scaled product gives what the same numbers without scales give in float32."""
    heads, kv_heads, dim, tokens = 6, 2, 16, 5
    random = torch.Generator().manual_seed(3)
    product = scaled_product(tokens, (heads + 2 * kv_heads) * dim, dtype, device)
    weights = [torch.randn(dim, generator=random).to(device, dtype) if norm else None for _ in range(2)]
    angle = 6 * torch.rand(40, dim // 2, generator=random)
    where = [
        angle.cos().to(device), angle.sin().to(device), torch.tensor([3, 0, 39, 7, 7], device=device).int(),
    ]  # fmt: skip
    slots = torch.tensor([0, 5, -1, 9, 11], device=device).int()

    def run(module: ModuleType, qkv: object, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        pages = torch.zeros(2, 12, kv_heads, 4, dim, dtype=dtype, device=device)
        return module.qk_norm_rope_write(qkv, *weights, 1e-6, *where, pages[0], pages[1], slots), pages

    q, pages = run(ROTARY[kind], product, dtype)
    expected_q, expected_pages = run(qk_norm_rope_write, exact(product).float().to(device), torch.float32)
    assert q.dtype == dtype
    assert error(q, expected_q) < tolerance(dtype)
    for found, expected in zip(pages, expected_pages, strict=True):
        assert error(found, expected) < tolerance(dtype)


@pytest.mark.parametrize(("device", "dtype"), [INTERPRETER, CUDA_BFLOAT16])
@pytest.mark.parametrize(("rows", "out", "inputs"), [(1, 16, 32), (3, 48, 64), (17, 256, 512), (256, 1024, 2048)])
@pytest.mark.parametrize("bias", [False, True])
def test_both_forms_of_a_product_multiply_what_was_quantised(
    device: str, dtype: torch.dtype, rows: int, out: int, inputs: int, bias: bool
) -> None:
    random = torch.Generator().manual_seed(5)
    x, weight = (quantise.quantise(torch.randn(size, inputs, generator=random)) for size in (rows, out))
    added = torch.randn(out, generator=random).to(dtype) if bias else None
    expected = (x.values.double() * x.scale[:, None]) @ (weight.values.double() * weight.scale[:, None]).T
    x, weight = (type(m)(m.values.to(device), m.scale.to(device)) for m in (x, weight))
    allowed = 3e-3 if device == "cuda" else 1e-5  # Hopper accumulates in less than float32
    found = tensorwise(x, weight, torch.ones((), device=device), dtype)
    assert found.values.dtype == dtype
    assert error(exact(found), expected) < allowed
    assert found.values.abs().max() <= inputs * FP8_MAX**2
    rowed = rowwise(x, weight, None if added is None else added.to(device), dtype)
    assert rowed.dtype == dtype
    assert error(rowed, expected if added is None else expected + added.double()) < allowed
