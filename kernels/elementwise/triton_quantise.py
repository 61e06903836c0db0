"""``quantise`` in Triton, and the end that it lends to the kernels which quantise what they compute."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.elementwise.quantise import SMALLEST
from kernels.linear.scaled import FP8, FP8_MAX, Fp8Matrix

_SMALLEST, _LARGEST = tl.constexpr(SMALLEST), tl.constexpr(FP8_MAX)


@triton.jit
def to_fp8(value):
    """Float32 of one or two dimensions as e4m3, and the scale of all of it."""
    largest = tl.maximum(tl.max(tl.abs(value)), _SMALLEST)
    fitted = tl.clamp(value * (_LARGEST / largest), -_LARGEST, _LARGEST)
    return fitted.to(tl.float8e4nv), largest / _LARGEST


@triton.jit
def store_fp8(value, out, columns, inside, scale_out):
    """Write a whole row of float32, 0 where it is not ``inside``, as e4m3 and its scale."""
    fitted, scale = to_fp8(value)
    tl.store(scale_out, scale)
    tl.store(out + columns, fitted, mask=inside)


@triton.jit
def quantise_row(x, out, scale_out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Program ``row``."""
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    row = tl.program_id(0).to(tl.int64)
    value = tl.load(x + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    store_fp8(value, out + row * SIZE, columns, inside, scale_out + row)


def empty_fp8(rows: int, size: int, device: torch.device) -> Fp8Matrix:
    """Memory for a quantised matrix."""
    return Fp8Matrix(
        torch.empty((rows, size), dtype=FP8, device=device), torch.empty(rows, dtype=torch.float32, device=device)
    )


def warps_for(block: int) -> int:
    """Warps of a program that holds a row of so many elements."""
    return max(1, min(8, block // 256))


def quantise(x: Tensor) -> Fp8Matrix:
    """As the torch twin; ``x`` contiguous."""
    rows, size = x.shape
    out = empty_fp8(rows, size, x.device)
    block = triton.next_power_of_2(size)
    quantise_row[(rows,)](x, out.values, out.scale, SIZE=size, BLOCK=block, num_warps=warps_for(block))
    return out
