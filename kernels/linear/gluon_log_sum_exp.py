"""``log_sum_exp`` for Hopper, bfloat16: about as fast as the product alone, as logits never leave the registers."""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from kernels.attention.choice import multiprocessors
from kernels.gluon_copies import make_barriers
from kernels.linear.gluon_product import (
    GROUPS,
    OUTPUTS,
    ROWS,
    STAGES,
    bring_tiles,
    make_rings,
    multiply_tile,
    place_of,
    rows_descriptor,
    weight_descriptor,
)
from kernels.linear.triton_log_sum_exp import joined

LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _consume(x_ring, weight_ring, full, empty, peaks, totals, T, V, K, row_blocks, output_blocks, MINE: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, OUTPUTS, 16])
    lanes = gl.arange(0, OUTPUTS, layout=gl.SliceLayout(0, layout))
    mine = MINE * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    used = gl.to_tensor(0)
    for tile in range(gl.program_id(0), row_blocks * output_blocks, gl.num_programs(0)):
        row_block, output_block = place_of(tile, row_blocks, output_blocks)
        sums, used = multiply_tile(x_ring, weight_ring, full, empty, used, K, MINE, layout)
        rows = row_block * (GROUPS * ROWS) + mine
        logits = gl.where((output_block * OUTPUTS + lanes < V)[None, :], sums, float("-inf"))
        peak = gl.max(logits, 1) * LOG2_E
        total = gl.sum(gl.exp2(logits * LOG2_E - peak[:, None]), 1)
        at = output_block.to(gl.int64) * T + rows
        gl.store(peaks + at, peak, mask=rows < T)
        gl.store(totals + at, total, mask=rows < T)


@gluon.jit(do_not_specialize=["T", "row_blocks", "output_blocks"])
def multiply_and_sum(
    x, weight, peaks, totals, T, V, K, row_blocks, output_blocks
):  # fmt: skip
    """As many programs as the device runs at once. ``peaks``, ``totals``: as in ``triton_log_sum_exp``."""
    x_ring, weight_ring = make_rings(x, weight)
    full = make_barriers(1, STAGES)
    empty = make_barriers(GROUPS, STAGES)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                x_ring, weight_ring, full, empty, peaks, totals, T, V, K, row_blocks, output_blocks, 0
            )),
            (_consume, (
                x_ring, weight_ring, full, empty, peaks, totals, T, V, K, row_blocks, output_blocks, 1
            )),
            (bring_tiles, (x, weight, x_ring, weight_ring, full, empty, K, row_blocks, output_blocks, False)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def log_sum_exp(x: Tensor, weight: Tensor) -> Tensor:
    """As the torch twin; both contiguous."""
    rows, depth = x.shape
    row_blocks = triton.cdiv(rows, GROUPS.value * ROWS.value)
    output_blocks = triton.cdiv(len(weight), OUTPUTS.value)
    peaks, totals = torch.empty((2, output_blocks, rows), dtype=torch.float32, device=x.device)
    multiply_and_sum[(min(row_blocks * output_blocks, multiprocessors(x.device)),)](
        rows_descriptor(x), weight_descriptor(weight), peaks, totals,
        rows, len(weight), depth, row_blocks, output_blocks, num_warps=4, maxnreg=168,
    )  # fmt: skip
    return joined(peaks, totals)
