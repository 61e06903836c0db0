"""Row kernels against float64."""

import pytest
import torch
from torch import Tensor

from kernels.elementwise.triton_qk_norm_rope_write import qk_norm_rope_write
from kernels.elementwise.triton_rms_norm import rms_norm
from kernels.elementwise.triton_silu_mul import silu_mul
from tests.kernels.device import EVERYWHERE, error, tolerance


def normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * weight.double()


@EVERYWHERE
@pytest.mark.parametrize("shape", [(5, 72), (1, 16), (2, 3, 40)])
@pytest.mark.parametrize("add", [False, True])
def test_rms_norm_adds_the_residual_first(device: str, dtype: torch.dtype, shape: tuple[int, ...], add: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1], generator=generator).to(dtype)
    out, h = rms_norm(x.to(device), weight.to(device), 1e-6, residual.to(device) if add else None)
    expected = x + residual if add else x
    assert error(h, expected) < tolerance(dtype)
    assert error(out, normed(expected, weight)) < tolerance(dtype)


@EVERYWHERE
@pytest.mark.parametrize(("rows", "size"), [(7, 50), (1, 2500)])
def test_silu_mul(device: str, dtype: torch.dtype, rows: int, size: int) -> None:
    gate_up = torch.randn(rows, 2 * size, generator=torch.Generator().manual_seed(0)).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert error(silu_mul(gate_up.to(device)), gate * gate.sigmoid() * up) < tolerance(dtype)


@EVERYWHERE
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block"), [(6, 2, 16, 4), (4, 4, 32, 1), (7, 1, 16, 8)])
@pytest.mark.parametrize("norm", [False, True])
def test_keys_and_values_go_to_their_slots_rotated(
    device: str, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, block: int, norm: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(5, (heads + 2 * kv_heads) * dim, generator=generator).to(dtype)
    weights = [torch.randn(dim, generator=generator).to(dtype) for _ in range(2)]
    angle = torch.rand(40, dim // 2, generator=generator) * 6
    positions = torch.tensor([3, 0, 39, 7, 7]).int()
    slots = torch.tensor([0, 5, -1, 9, 11]).int()
    pages = torch.zeros(2, 12, kv_heads, block, dim, dtype=dtype, device=device)
    q_weight, k_weight = [w.to(device) for w in weights] if norm else (None, None)
    q = qk_norm_rope_write(
        qkv.to(device),
        q_weight, k_weight, 1e-6, angle.cos().to(device), angle.sin().to(device), positions.to(device),
        pages[0], pages[1], slots.to(device),
    )  # fmt: skip

    def rotated(x: Tensor, weight: Tensor) -> Tensor:
        x = normed(x, weight) if norm else x.double()
        low, high = x.chunk(2, dim=-1)
        at = angle.double()[positions.long()][:, None]
        return torch.cat([low * at.cos() - high * at.sin(), high * at.cos() + low * at.sin()], dim=-1)

    every = qkv.view(5, -1, dim)
    assert error(q, rotated(every[:, :heads], weights[0])) < tolerance(dtype)
    expected = torch.zeros(2, 12, kv_heads, block, dim, dtype=torch.float64)
    k = rotated(every[:, heads : heads + kv_heads], weights[1])
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0, slot // block, :, slot % block] = k[t]
            expected[1, slot // block, :, slot % block] = every[t, heads + kv_heads :].double()
    assert error(pages[0], expected[0]) < tolerance(dtype)
    assert torch.equal(pages[1].cpu().double(), expected[1])
