"""``paged_prefill_attention`` for Hopper, bfloat16, heads and pages of 128."""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.choice import multiprocessors
from kernels.attention.gluon_pages import (
    ROWS,
    STAGES,
    attend_pages,
    end_last,
    load_queries,
    make_barriers,
    produce,
    start_last,
)
from kernels.attention.triton_splits import LOG2_E


@gluon.jit
def _place(place, r, before, query_begin, context_len, R, GROUP: gl.constexpr, PAGE: gl.constexpr):
    """Request, rows and pages of the block of 128 rows at ``place``, where blocks of all requests stand in a row.

    ``r``: a request at or before it, ``before`` blocks stand before that one. Of a request the last block comes first:
    it has most to do. No pages: there are no more blocks.
    """
    begin = gl.load(query_begin + r)
    tokens = gl.load(query_begin + r + 1) - begin
    count = (tokens * GROUP + 2 * ROWS - 1) // (2 * ROWS)
    while (place >= before + count) & (r + 1 < R):
        r += 1
        before += count
        begin = gl.load(query_begin + r)
        tokens = gl.load(query_begin + r + 1) - begin
        count = (tokens * GROUP + 2 * ROWS - 1) // (2 * ROWS)
    length = gl.load(context_len + r)
    prefix = length - tokens
    row0 = (before + count - 1 - place) * (2 * ROWS)
    blocks = gl.minimum(prefix + (row0 + 2 * ROWS - 1) // GROUP, length - 1) // PAGE + 1
    blocks = gl.where(row0 < 0, 0, blocks)
    masked = gl.maximum(blocks - (prefix + row0 // GROUP + 1) // PAGE, 1)
    return r, before, begin, tokens * GROUP, prefix, row0, blocks, masked


@gluon.jit
def _number(turn):
    """The tile of this program's ``turn``: every other turn backwards, so that long and short ones even out."""
    program, programs = gl.program_id(0), gl.num_programs(0)
    return turn * programs + gl.where(turn % 2 == 0, program, programs - 1 - program)


@gluon.jit
def _consume(
    queries, q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len, out, R, turns, scale,
    HALF: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PAGE, 16])
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, layout))
    base = gl.to_tensor(0)
    r = gl.to_tensor(0)
    before = gl.to_tensor(0)
    for turn in range(turns):
        number = _number(turn)
        head = number % HEADS
        r, before, begin, live_rows, prefix, row0, blocks, masked = _place(
            number // HEADS, r, before, query_begin, context_len, R, GROUP, PAGE
        )
        row0 += HALF * ROWS
        if blocks > 0:
            first_cell = (begin.to(gl.int64) * (HEADS * GROUP) + head * GROUP) * DIM
            queries.store(load_queries(q + first_cell, row0, live_rows, GROUP, HEADS * GROUP, DIM, tile))
            fence_async_shared()
            rows = row0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
            peak = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(1, layout))
            total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, layout))
            p, sums, _, total = attend_pages(
                queries, k_ring, v_ring, k_full, k_empty, v_full, v_empty, base, 0, blocks, masked,
                prefix + rows // GROUP, peak, total, scale, DIM, PAGE, layout,
            )  # fmt: skip
            base += blocks
            token = start_last(p, sums, v_ring, v_full, base - 1)
            at = (rows // GROUP).to(gl.int64) * (HEADS * GROUP) + rows % GROUP
            inverse = 1.0 / total
            value = (end_last(token, v_empty, base - 1) * inverse[:, None]).to(gl.bfloat16)
            target = out + first_cell + at[:, None] * DIM + columns[None, :]
            gl.store(target, value, mask=(rows < live_rows)[:, None])


@gluon.jit
def _produce(
    page_table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len,
    R, max_pages, turns,
    HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    base = gl.to_tensor(0)
    r = gl.to_tensor(0)
    before = gl.to_tensor(0)
    for turn in range(turns):
        number = _number(turn)
        r, before, _begin, _live_rows, _prefix, _row0, blocks, _masked = _place(
            number // HEADS, r, before, query_begin, context_len, R, GROUP, PAGE
        )
        if blocks > 0:
            produce(
                page_table + r * max_pages, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty,
                base, 0, blocks, number % HEADS, HEADS, PAGE,
            )  # fmt: skip
            base += blocks


@gluon.jit(do_not_specialize=["R", "max_pages", "turns"])
def attend_causal(
    q, keys, values, page_table, query_begin, context_len, out,
    R, max_pages, turns, scale,
    HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """As many programs as the device runs at once; a tile is 128 rows of a KV head, a row a token and a query head."""
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, DIM], gl.bfloat16)
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, DIM], shared)
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, PAGE, DIM], keys.layout)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, PAGE, DIM], values.layout)
    k_full = make_barriers(1)
    v_full = make_barriers(1)
    k_empty = make_barriers(2)
    v_empty = make_barriers(2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                queries.index(0), q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len, out,
                R, turns, scale, 0, HEADS, GROUP, DIM, PAGE,
            )),
            (_consume, (
                queries.index(1), q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len, out,
                R, turns, scale, 1, HEADS, GROUP, DIM, PAGE,
            )),
            (_produce, (
                page_table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len,
                R, max_pages, turns, HEADS, GROUP, PAGE,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def paged_prefill_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    query_begin: Tensor,
    context_len: Tensor,
    scale: float,
) -> Tensor:
    """As the torch twin, all arrays contiguous."""
    tokens, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group, requests = query_heads // heads, len(context_len)
    out = torch.empty_like(q)
    tiles = (triton.cdiv(tokens * group, 2 * ROWS.value) + requests) * heads
    programs = min(tiles, multiprocessors(q.device))
    layout = gl.NVMMASharedLayout.get_default_for([page, dim], gl.bfloat16)
    attend_causal[(programs,)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [page, dim], layout),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [page, dim], layout),
        page_table, query_begin, context_len, out,
        requests, page_table.shape[1], triton.cdiv(tiles, programs), scale * LOG2_E,
        HEADS=heads, GROUP=group, DIM=dim, PAGE=page,
        num_warps=4, maxnreg=168,
    )  # fmt: skip
    return out
