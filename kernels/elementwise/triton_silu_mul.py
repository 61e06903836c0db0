"""``silu_mul`` in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def gate(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Program ``(row, block of columns)``."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    row = tl.program_id(0).to(tl.int64)
    gates = tl.load(gate_up + row * 2 * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(gate_up + row * 2 * SIZE + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    value = gates / (1.0 + tl.exp(-gates)) * ups
    tl.store(out + row * SIZE + columns, value.to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """As the torch twin; ``gate_up`` contiguous."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
    block = min(triton.next_power_of_2(size), 2048)
    gate[(rows, triton.cdiv(size, block))](gate_up, out, SIZE=size, BLOCK=block, num_warps=max(1, min(8, block // 256)))
    return out
