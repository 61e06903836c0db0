"""``silu_mul`` and ``silu_mul_fp8`` in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.elementwise.triton_quantise import empty_fp8, store_fp8
from kernels.linear.scaled import Fp8Matrix, Product, ScaledProduct, scales_of, values_of

_BLOCK = 2048  # columns of a program where a row may be cut; quantising needs all of it


@triton.jit
def gate(
    gate_up, rows, columns, out, out_scale,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr, QUANTISE: tl.constexpr,
):  # fmt: skip
    """Program ``(row, block of columns)``."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    row = tl.program_id(0).to(tl.int64)
    gates = tl.load(gate_up + row * 2 * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(gate_up + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        scale = tl.load(rows + row)
        gates = gates * scale * tl.load(columns + column, mask=inside, other=0.0)
        ups = ups * scale * tl.load(columns + SIZE + column, mask=inside, other=0.0)
    value = gates / (1.0 + tl.exp(-gates)) * ups
    if QUANTISE:
        store_fp8(value, out + row * SIZE, column, inside, out_scale + row)
    else:
        tl.store(out + row * SIZE + column, value.to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Product) -> Tensor:
    """As the torch twin; ``gate_up`` contiguous."""
    values = values_of(gate_up)
    rows, size = values.shape[0], values.shape[1] // 2
    out = torch.empty((rows, size), dtype=values.dtype, device=values.device)
    block = min(triton.next_power_of_2(size), _BLOCK)
    gate[(rows, triton.cdiv(size, block))](
        values, *scales_of(gate_up, values), out, values,
        SIZE=size, BLOCK=block, SCALED=isinstance(gate_up, ScaledProduct), QUANTISE=False,
        num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    return out


def silu_mul_fp8(gate_up: Product) -> Fp8Matrix:
    """As the torch twin; ``gate_up`` contiguous."""
    values = values_of(gate_up)
    rows, size = values.shape[0], values.shape[1] // 2
    out = empty_fp8(rows, size, values.device)
    block = triton.next_power_of_2(size)
    gate[(rows, 1)](
        values, *scales_of(gate_up, values), out.values, out.scale,
        SIZE=size, BLOCK=block, SCALED=isinstance(gate_up, ScaledProduct), QUANTISE=True,
        num_warps=4,
    )  # fmt: skip
    return out
