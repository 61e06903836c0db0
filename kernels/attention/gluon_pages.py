"""The core of the attention kernels for Hopper: one warp brings pages, two warp groups of 64 rows use them.

A program works through several tiles of 128 rows. The warp that brings pages does not wait for the end of a tile: it is
two pages ahead in the next one while the last rows are written. ``base`` counts the pages of the tiles before.

Keys are walked from the last page to the first, so that what must be masked comes first. While the tensor cores
multiply weights and values of a page, the exponentials of the next one are taken. What a page holds past the end of its
context must be finite.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.gluon_copies import copy_in

STAGES = gl.constexpr(2)
ROWS = gl.constexpr(64)
"""Rows of one warp group."""


@gluon.jit
def produce(
    table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, base, first, blocks, head,
    HEADS: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """Bring ``blocks`` pages from table entry ``first`` on, the last one first."""
    page = gl.load(table + first + blocks - 1)
    for i in range(blocks):
        stage = (base + i) % STAGES
        phase = (((base + i) // STAGES) & 1) ^ 1
        row = (page * HEADS + head) * PAGE
        page = gl.load(table + first + gl.maximum(blocks - 2 - i, 0))
        mbarrier.wait(k_empty.index(stage), phase)
        mbarrier.expect(k_full.index(stage), keys.block_type.nbytes)
        copy_in(keys, [row, 0], k_full.index(stage), k_ring.index(stage))
        mbarrier.wait(v_empty.index(stage), phase)
        mbarrier.expect(v_full.index(stage), values.block_type.nbytes)
        copy_in(values, [row, 0], v_full.index(stage), v_ring.index(stage))


@gluon.jit
def load_queries(
    q, row0, live_rows, GROUP: gl.constexpr, QUERY_HEADS: gl.constexpr, DIM: gl.constexpr, tile: gl.constexpr
):
    """One warp group's rows, zero from ``live_rows`` on."""
    rows = row0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, tile))
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, tile))
    at = (rows // GROUP).to(gl.int64) * QUERY_HEADS + rows % GROUP
    return gl.load(q + at[:, None] * DIM + columns[None, :], mask=(rows < live_rows)[:, None], other=0.0)


@gluon.jit
def store_rows(
    staging, value, out, row0, live_rows,
    GROUP: gl.constexpr, QUERY_HEADS: gl.constexpr, DIM: gl.constexpr, tile: gl.constexpr,
):  # fmt: skip
    """One warp group's results, by way of the memory of its queries: rows are then written in whole."""
    staging.store(value)
    rows = row0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, tile))
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, tile))
    at = (rows // GROUP).to(gl.int64) * QUERY_HEADS + rows % GROUP
    value = staging.load(tile)
    gl.store(out + at[:, None] * DIM + columns[None, :], value, mask=(rows < live_rows)[:, None])


@gluon.jit
def _weigh(s, peak, total, scale, operand: gl.constexpr, MASKED: gl.constexpr):
    """Softmax of one block against the running peak: weights, new peak, factor for what came before, new total."""
    new_peak = gl.maximum(peak, gl.max(s, 1) * scale)
    base = new_peak
    if MASKED:  # a row may see nothing of a page
        base = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = gl.exp2(s * scale - base[:, None])
    shrink = gl.exp2(peak - base)
    total = total * shrink + gl.sum(weights, 1)
    return gl.convert_layout(weights.to(gl.bfloat16), operand), new_peak, shrink, total


@gluon.jit
def attend_pages(
    q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, base, first, blocks, masked, position, peak, total, scale,
    DIM: gl.constexpr, PAGE: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """One warp group's part: sums ``[ROWS, DIM]``, peak and total ``[ROWS]`` in units of log 2.

    Row ``i`` sees the keys up to ``position[i]``; only the last ``masked`` of the ``blocks`` pages hold later ones.
    The sums are without the page walked last: ``start_last`` and ``end_last`` add it, from the weights returned first.
    """
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=layout, k_width=2)
    lanes = gl.arange(0, PAGE, layout=gl.SliceLayout(0, layout))
    zero = gl.zeros([ROWS, PAGE], gl.float32, layout=layout)
    acc = gl.zeros([ROWS, DIM], gl.float32, layout=layout)

    mbarrier.wait(k_full.index(base % STAGES), (base // STAGES) & 1)
    s_token = warpgroup_mma(q, k_ring.index(base % STAGES).permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s_token])
    mbarrier.arrive(k_empty.index(base % STAGES), count=1)
    seen = ((first + blocks - 1) * PAGE + lanes)[None, :] <= position[:, None]
    p, peak, _, total = _weigh(gl.where(seen, s, float("-inf")), peak, total, scale, operand, True)

    for i in range(1, masked):
        now = base + i
        stage = now % STAGES
        mbarrier.wait(k_full.index(stage), (now // STAGES) & 1)
        s_token = warpgroup_mma(q, k_ring.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s_token])
        mbarrier.arrive(k_empty.index(stage), count=1)
        before = (now - 1) % STAGES
        mbarrier.wait(v_full.index(before), ((now - 1) // STAGES) & 1)
        acc_token = warpgroup_mma(p, v_ring.index(before), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc_token])
        mbarrier.arrive(v_empty.index(before), count=1)
        seen = ((first + blocks - 1 - i) * PAGE + lanes)[None, :] <= position[:, None]
        p, peak, shrink, total = _weigh(gl.where(seen, s, float("-inf")), peak, total, scale, operand, True)
        acc = acc * shrink[:, None]

    for i in range(masked, blocks):
        now = base + i
        stage = now % STAGES
        mbarrier.wait(k_full.index(stage), (now // STAGES) & 1)
        s_token = warpgroup_mma(q, k_ring.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
        before = (now - 1) % STAGES
        mbarrier.wait(v_full.index(before), ((now - 1) // STAGES) & 1)
        acc_token = warpgroup_mma(p, v_ring.index(before), acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s_token])
        mbarrier.arrive(k_empty.index(stage), count=1)
        next_p, peak, shrink, total = _weigh(s, peak, total, scale, operand, False)
        # or ptxas would wait before the exponentials
        mbarrier.wait(v_full.index(before), ((now - 1) // STAGES) & 1)
        acc, p = warpgroup_mma_wait(0, deps=[acc_token, p])
        mbarrier.arrive(v_empty.index(before), count=1)
        acc = acc * shrink[:, None]
        p = next_p
    return p, acc, peak, total


@gluon.jit
def start_last(p, acc, v_ring, v_full, last):
    """Begin the product of the weights of the page walked last, which is number ``last`` of all."""
    mbarrier.wait(v_full.index(last % STAGES), (last // STAGES) & 1)
    return warpgroup_mma(p, v_ring.index(last % STAGES), acc, is_async=True)


@gluon.jit
def end_last(token, v_empty, last):
    """The sums with that page."""
    acc = warpgroup_mma_wait(0, deps=[token])
    mbarrier.arrive(v_empty.index(last % STAGES), count=1)
    return acc
