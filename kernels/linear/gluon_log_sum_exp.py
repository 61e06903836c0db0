"""``log_sum_exp`` for Hopper, bfloat16: as fast as the product alone, as the logits never leave the registers.

A program works through several tiles of 128 rows by 256 outputs. One warp brings blocks of both operands, ahead also
over the end of a tile; two warp groups of 64 rows multiply. They come apart by some blocks, so that one multiplies
while the other takes its exponentials.
"""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.choice import multiprocessors
from kernels.attention.gluon_pages import ROWS, copy_in
from kernels.linear.triton_log_sum_exp import joined

GROUPS = gl.constexpr(2)
"""Warp groups that multiply."""
OUTPUTS = gl.constexpr(256)
DEPTH = gl.constexpr(64)
STAGES = gl.constexpr(4)
NEAR = gl.constexpr(32)
"""Row blocks that share an output block while it is in the cache."""
LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _barriers(arrivals: gl.constexpr):
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    for i in gl.static_range(STAGES):
        mbarrier.init(barriers.index(i), count=arrivals)
    return barriers


@gluon.jit
def _place(tile, row_blocks, output_blocks):
    """Row and output block of a tile: down the rows first, ``NEAR`` blocks of them."""
    group = tile // (NEAR * output_blocks)
    inside = tile - group * (NEAR * output_blocks)
    size = gl.minimum(row_blocks - group * NEAR, NEAR)
    return group * NEAR + inside % size, inside // size


@gluon.jit
def _produce(x, weight, x_ring, weight_ring, full, empty, K, row_blocks, output_blocks):
    brought = gl.to_tensor(0)
    for tile in range(gl.program_id(0), row_blocks * output_blocks, gl.num_programs(0)):
        row_block, output_block = _place(tile, row_blocks, output_blocks)
        for k in range(0, K, DEPTH):
            stage = brought % STAGES
            mbarrier.wait(empty.index(stage), ((brought // STAGES) & 1) ^ 1)
            mbarrier.expect(full.index(stage), GROUPS * x.block_type.nbytes + weight.block_type.nbytes)
            for i in gl.static_range(GROUPS):
                at = (row_block * GROUPS + i) * ROWS
                copy_in(x, [at, k], full.index(stage), x_ring.index(stage * GROUPS + i))
            copy_in(weight, [output_block * OUTPUTS, k], full.index(stage), weight_ring.index(stage))
            brought += 1


@gluon.jit
def _consume(x_ring, weight_ring, full, empty, peaks, totals, T, V, K, row_blocks, output_blocks, MINE: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, OUTPUTS, 16]
    )
    lanes = gl.arange(0, OUTPUTS, layout=gl.SliceLayout(0, layout))
    mine = MINE * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    zero = gl.zeros([ROWS, OUTPUTS], gl.float32, layout=layout)
    used = gl.to_tensor(0)
    for tile in range(gl.program_id(0), row_blocks * output_blocks, gl.num_programs(0)):
        row_block, output_block = _place(tile, row_blocks, output_blocks)
        stage = used % STAGES
        mbarrier.wait(full.index(stage), (used // STAGES) & 1)
        a = x_ring.index(stage * GROUPS + MINE)
        token = warpgroup_mma(a, weight_ring.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
        sums = warpgroup_mma_wait(1, deps=[token])
        used += 1
        for _ in range(DEPTH, K, DEPTH):
            stage = used % STAGES
            mbarrier.wait(full.index(stage), (used // STAGES) & 1)
            a = x_ring.index(stage * GROUPS + MINE)
            token = warpgroup_mma(a, weight_ring.index(stage).permute((1, 0)), sums, is_async=True)
            sums = warpgroup_mma_wait(1, deps=[token])
            mbarrier.arrive(empty.index((used - 1) % STAGES), count=1)
            used += 1
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(empty.index((used - 1) % STAGES), count=1)
        logits = gl.where((output_block * OUTPUTS + lanes < V)[None, :], sums, float("-inf"))
        peak = gl.max(logits, 1) * LOG2_E
        total = gl.sum(gl.exp2(logits * LOG2_E - peak[:, None]), 1)
        rows = row_block * (GROUPS * ROWS) + mine
        at = output_block.to(gl.int64) * T + rows
        gl.store(peaks + at, peak, mask=rows < T)
        gl.store(totals + at, total, mask=rows < T)


@gluon.jit(do_not_specialize=["T", "V", "row_blocks", "output_blocks"])
def multiply(x, weight, peaks, totals, T, V, K, row_blocks, output_blocks):
    """As many programs as the device runs at once. ``peaks``, ``totals``: as in ``triton_log_sum_exp.multiply``."""
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * GROUPS, ROWS, DEPTH], x.layout)
    weight_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, OUTPUTS, DEPTH], weight.layout)
    full = _barriers(1)
    empty = _barriers(GROUPS)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                x_ring, weight_ring, full, empty, peaks, totals, T, V, K, row_blocks, output_blocks, 0
            )),
            (_consume, (
                x_ring, weight_ring, full, empty, peaks, totals, T, V, K, row_blocks, output_blocks, 1
            )),
            (_produce, (x, weight, x_ring, weight_ring, full, empty, K, row_blocks, output_blocks)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def log_sum_exp(x: Tensor, weight: Tensor) -> Tensor:
    """As the torch twin; ``K`` a multiple of 8, both contiguous."""
    rows, depth = x.shape
    row_blocks = triton.cdiv(rows, GROUPS.value * ROWS.value)
    output_blocks = triton.cdiv(len(weight), OUTPUTS.value)
    peaks, totals = torch.empty((2, output_blocks, rows), dtype=torch.float32, device=x.device)
    blocks = [ROWS.value, DEPTH.value], [OUTPUTS.value, DEPTH.value]
    x_layout, weight_layout = (gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16) for block in blocks)
    multiply[(min(row_blocks * output_blocks, multiprocessors(x.device)),)](
        TensorDescriptor.from_tensor(x, blocks[0], x_layout),
        TensorDescriptor.from_tensor(weight, blocks[1], weight_layout),
        peaks, totals, rows, len(weight), depth, row_blocks, output_blocks, num_warps=4, maxnreg=168,
    )  # fmt: skip
    return joined(peaks, totals)
