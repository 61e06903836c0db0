"""Attention whose result is rounded to float8: that of the same kernel without, divided by the scale."""

import pytest
import torch
from torch import Tensor

from kernels.attention import decode, prefill
from kernels.attention.triton_decode import portable_decode
from kernels.attention.triton_prefill import portable_prefill
from kernels.linear.scaled import FP8
from tests.kernels.device import EVERYWHERE
from tests.kernels.test_gluon_attention import HOPPER
from tests.kernels.test_triton_attention import LOOPS, Pages

SCALE = 0.01
DECODE = {"twin": decode.beam_decode_attention, "triton": portable_decode}
PREFILL = {"twin": prefill.paged_prefill_attention, "triton": portable_prefill}
KERNELS = pytest.mark.parametrize("kind", ["twin", "triton"])
pytestmark = pytest.mark.skipif(not LOOPS, reason="the interpreter of Triton before 3.9 has no loops with NumPy 2.4")


def assert_rounded(narrow: Tensor, wide: Tensor) -> None:
    assert narrow.dtype == FP8
    assert narrow.shape == wide.shape
    found, exact = narrow.cpu().double() * SCALE, wide.cpu().double()
    half_unit = torch.maximum(exact.abs() / 16, torch.tensor(SCALE * 2**-10))
    assert ((found - exact).abs() <= half_unit + exact.abs() / 120).all()
    assert found.any()


def decode_arguments(device: str, dtype: torch.dtype, dim: int, page: int) -> tuple[object, ...]:
    lengths, widths, heads, group, steps = [3 * page - 5, 7], [9, 2], 2, 2, 2
    random = torch.Generator().manual_seed(7)
    pages = Pages(lengths, heads, dim, page, device, dtype)
    q = torch.randn(2, 9, heads * group, dim, generator=random).to(device, dtype)
    own = torch.randn(2, steps, 2, 9, heads, dim, generator=random).to(device, dtype)
    path = torch.randint(0, 9, (steps, 2, 9), generator=random).int().to(device)
    width = torch.tensor(widths, dtype=torch.int32, device=device)
    return q, pages.k.nan_to_num(9.0), pages.v.nan_to_num(9.0), pages.table, pages.length, *own, path, width, 0.2


def prefill_arguments(device: str, dtype: torch.dtype, dim: int, page: int) -> tuple[object, ...]:
    lengths, new, heads, group = [2 * page + 5, 1, 40], [2 * page + 5, 1, 20], 2, 2
    pages = Pages(lengths, heads, dim, page, device, dtype)
    begin = torch.tensor([0, *new]).cumsum(0).int()
    q = torch.randn(int(begin[-1]), heads * group, dim, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    k, v = pages.k.nan_to_num(9.0), pages.v.nan_to_num(9.0)
    return q, k, v, pages.table, begin.to(device), pages.length, 0.3


@KERNELS
@EVERYWHERE
def test_decode_attention_may_be_rounded_to_float8(kind, device, dtype):
    arguments = decode_arguments(device, dtype, 16, 16)
    assert_rounded(DECODE[kind](*arguments, fp8_scale=SCALE), DECODE[kind](*arguments))


@KERNELS
@EVERYWHERE
def test_prefill_attention_may_be_rounded_to_float8(kind, device, dtype):
    arguments = prefill_arguments(device, dtype, 16, 16)
    assert_rounded(PREFILL[kind](*arguments, fp8_scale=SCALE), PREFILL[kind](*arguments))


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a Hopper device")
def test_the_kernels_for_hopper_may_round_to_float8():
    from kernels.attention.gluon_decode import beam_decode_attention
    from kernels.attention.gluon_prefill import paged_prefill_attention

    arguments = decode_arguments("cuda", torch.bfloat16, 128, 128)
    assert_rounded(beam_decode_attention(*arguments, fp8_scale=SCALE), beam_decode_attention(*arguments))
    arguments = prefill_arguments("cuda", torch.bfloat16, 128, 128)
    assert_rounded(paged_prefill_attention(*arguments, fp8_scale=SCALE), paged_prefill_attention(*arguments))
