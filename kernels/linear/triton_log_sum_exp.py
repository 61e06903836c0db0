"""``log_sum_exp`` in Triton: every tile of logits leaves its maximum and its sum, which a second kernel joins."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.linear import log_sum_exp as twin
from kernels.linear.hopper import fits_hopper

LOG2_E = tl.constexpr(1.4426950408889634)
NEAR = tl.constexpr(32)
"""Row blocks that share an output block while it is in the cache."""
_ROWS, _OUTPUTS, _DEPTH = 128, 128, 64


@triton.jit
def place_of(tile, row_blocks, output_blocks):
    """Row and output block of a tile: down the rows first, ``NEAR`` blocks of them."""
    group = tile // (NEAR * output_blocks)
    inside = tile - group * (NEAR * output_blocks)
    size = tl.minimum(row_blocks - group * NEAR, NEAR)
    return group * NEAR + inside % size, inside // size


@triton.jit(do_not_specialize=["T", "V", "row_blocks", "output_blocks"])
def multiply(
    x, weight, peaks, totals, T, V, K, row_blocks, output_blocks,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program ``(tile)``. ``peaks``, ``totals``: float32 ``[output blocks, T]``, in units of log 2."""
    row_block, output_block = place_of(tl.program_id(0), row_blocks, output_blocks)
    rows = row_block * ROWS + tl.arange(0, ROWS)
    outputs = output_block * OUTPUTS + tl.arange(0, OUTPUTS)
    depth = tl.arange(0, DEPTH)
    at_x = x + rows.to(tl.int64)[:, None] * K + depth[None, :]
    at_weight = weight + outputs.to(tl.int64)[None, :] * K + depth[:, None]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in tl.range(0, K, DEPTH):
        inside = depth < K - start
        a = tl.load(at_x + start, mask=(rows < T)[:, None] & inside[None, :], other=0.0)
        b = tl.load(at_weight + start, mask=(outputs < V)[None, :] & inside[:, None], other=0.0)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    logits = tl.where((outputs < V)[None, :], sums * LOG2_E, float("-inf"))
    peak = tl.max(logits, 1)
    at = output_block.to(tl.int64) * T + rows
    tl.store(peaks + at, peak, mask=rows < T)
    tl.store(totals + at, tl.sum(tl.exp2(logits - peak[:, None]), 1), mask=rows < T)


@triton.jit(do_not_specialize=["T", "parts"])
def join_sums(peaks, totals, out, T, parts, ROWS: tl.constexpr, PARTS: tl.constexpr):
    """Program ``(ROWS rows)``; ``out``: float32 ``[T]``, natural."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    some_row = tl.minimum(rows, T - 1)
    lanes = tl.arange(0, PARTS)
    peak = tl.full([PARTS, ROWS], float("-inf"), tl.float32)
    total = tl.zeros([PARTS, ROWS], tl.float32)
    for start in tl.range(0, parts, PARTS):
        some = (start + lanes < parts)[:, None]
        at = (start + lanes).to(tl.int64)[:, None] * T + some_row[None, :]
        other = tl.load(peaks + at, mask=some, other=float("-inf"))
        new_peak = tl.maximum(peak, other)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        total = total * tl.exp2(peak - base) + tl.load(totals + at, mask=some, other=0.0) * tl.exp2(other - base)
        peak = new_peak
    highest = tl.max(peak, 0)
    total = tl.sum(total * tl.exp2(peak - highest[None, :]), 0)
    tl.store(out + rows, (highest + tl.log2(total)) / LOG2_E, mask=rows < T)


def joined(peaks: Tensor, totals: Tensor) -> Tensor:
    """Natural log-sum-exps ``[T]`` of parts ``[parts, T]``."""
    parts, rows = peaks.shape
    out = torch.empty(rows, dtype=torch.float32, device=peaks.device)
    block = min(triton.next_power_of_2(parts), 64)
    join_sums[(triton.cdiv(rows, 32),)](peaks, totals, out, rows, parts, ROWS=32, PARTS=block, num_warps=8)
    return out


def log_sum_exp(x: Tensor, weight: Tensor) -> Tensor:
    """As the torch twin; both contiguous. The parts do not depend on the other rows, nor do the bits of a result."""
    if fits_hopper(x, weight):
        from kernels.linear.gluon_log_sum_exp import log_sum_exp as for_hopper

        return for_hopper(x, weight)
    if x.is_cuda and x.dtype == torch.float32:  # cuBLAS is far ahead there
        return twin.log_sum_exp(x, weight)
    return portable_log_sum_exp(x, weight)


def portable_log_sum_exp(x: Tensor, weight: Tensor) -> Tensor:
    """In plain Triton."""
    rows, outputs = len(x), len(weight)
    row_blocks, output_blocks = triton.cdiv(rows, _ROWS), triton.cdiv(outputs, _OUTPUTS)
    peaks, totals = torch.empty((2, output_blocks, rows), dtype=torch.float32, device=x.device)
    multiply[(row_blocks * output_blocks,)](
        x, weight, peaks, totals, rows, outputs, x.shape[1], row_blocks, output_blocks,
        ROWS=_ROWS, OUTPUTS=_OUTPUTS, DEPTH=_DEPTH, num_warps=8, num_stages=3,
    )  # fmt: skip
    return joined(peaks, totals)
