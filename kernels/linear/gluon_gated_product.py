"""``gated_product`` for Hopper, bfloat16: gates and what they let through meet in the registers.

Both are rounded before, as they are where a product and another kernel follow each other: the bits are the same.
"""

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
    make_staging,
    multiply_tile,
    paired_descriptor,
    place_of,
    rows_descriptor,
)

HALF = gl.constexpr(OUTPUTS.value // 2)


@gluon.jit
def _consume(x_ring, weight_ring, staging, full, empty, out, T, N, K, row_blocks, output_blocks, MINE: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, OUTPUTS, 16])
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    used = gl.to_tensor(0)
    for tile in range(gl.program_id(0), row_blocks * output_blocks, gl.num_programs(0)):
        row_block, output_block = place_of(tile, row_blocks, output_blocks)
        sums, used = multiply_tile(x_ring, weight_ring, full, empty, used, K, MINE, layout)
        sums = sums.to(gl.bfloat16).to(gl.float32)
        gate, up = sums.reshape([ROWS, 2, HALF]).permute((0, 2, 1)).split()
        staging.store((gate / (1.0 + gl.exp(-gate)) * up).to(gl.bfloat16))
        rows = (row_block * GROUPS + MINE) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, wide))
        columns = output_block * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(0, wide))
        inside = (rows < T)[:, None] & (columns < N)[None, :]
        gl.store(out + rows.to(gl.int64)[:, None] * N + columns[None, :], staging.load(wide), mask=inside)


@gluon.jit(do_not_specialize=["T", "row_blocks", "output_blocks"])
def multiply_and_gate(x, weight, out, T, N, K, row_blocks, output_blocks):
    """As many programs as the device runs at once. ``out``: ``[T, N]``."""
    x_ring, weight_ring = make_rings(x, weight)
    staging = make_staging(HALF)
    full = make_barriers(1, STAGES)
    empty = make_barriers(GROUPS, STAGES)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                x_ring, weight_ring, staging.index(0), full, empty, out, T, N, K, row_blocks, output_blocks, 0
            )),
            (_consume, (
                x_ring, weight_ring, staging.index(1), full, empty, out, T, N, K, row_blocks, output_blocks, 1
            )),
            (bring_tiles, (x, weight, x_ring, weight_ring, full, empty, K, row_blocks, output_blocks, True)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def enough(rows: int, outputs: int, device: torch.device) -> bool:
    """Whether there are tiles for two and a half rounds: from there on this is faster than two kernels."""
    return _tiles(rows, outputs) >= multiprocessors(device) * 5 // 2


def gated_product(x: Tensor, weight: Tensor) -> Tensor:
    """As the torch twin; both contiguous."""
    rows, depth = x.shape
    outputs = len(weight) // 2
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    multiply_and_gate[(min(_tiles(rows, outputs), multiprocessors(x.device)),)](
        rows_descriptor(x), paired_descriptor(weight), out, rows, outputs, depth, *_blocks(rows, outputs),
        num_warps=4, maxnreg=168,
    )  # fmt: skip
    return out


def _blocks(rows: int, outputs: int) -> tuple[int, int]:
    return triton.cdiv(rows, GROUPS.value * ROWS.value), triton.cdiv(outputs, HALF.value)


def _tiles(rows: int, outputs: int) -> int:
    row_blocks, output_blocks = _blocks(rows, outputs)
    return row_blocks * output_blocks
