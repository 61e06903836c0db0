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
    store_rows,
)
from kernels.attention.triton_splits import LOG2_E


@gluon.jit
def _extent(query_begin, R, GROUP: gl.constexpr, REQUESTS: gl.constexpr, WARPS: gl.constexpr):
    """Requests up to the last that has tokens, and the most blocks of 128 rows that one of them has."""
    flat: gl.constexpr = gl.BlockedLayout([REQUESTS // 32], [32], [WARPS], [0])
    requests = gl.arange(0, REQUESTS, layout=flat)
    begins = gl.load(query_begin + requests, mask=requests < R, other=0)
    tokens = gl.load(query_begin + requests + 1, mask=requests < R, other=0) - begins
    live = gl.max(gl.where(tokens > 0, requests + 1, 0), 0)
    return live, (gl.max(tokens, 0) * GROUP + 2 * ROWS - 1) // (2 * ROWS)


@gluon.jit
def _place(number, live, most, query_begin, context_len, HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr):
    """Request, rows and pages of tile ``number``; no pages where the request has no such block.

    The last blocks of all requests come first: they have most to do.
    """
    block = most - 1 - number // (HEADS * live)
    r = number // HEADS % live
    begin = gl.load(query_begin + r)
    tokens = gl.load(query_begin + r + 1) - begin
    length = gl.load(context_len + r)
    prefix = length - tokens
    row0 = block * (2 * ROWS)
    blocks = gl.minimum(prefix + (row0 + 2 * ROWS - 1) // GROUP, length - 1) // PAGE + 1
    blocks = gl.where((block >= 0) & (row0 < tokens * GROUP), blocks, 0)
    masked = gl.maximum(blocks - (prefix + row0 // GROUP + 1) // PAGE, 1)
    return r, begin, tokens * GROUP, prefix, row0, blocks, masked


@gluon.jit
def _number(turn):
    """The tile of this program's ``turn``: every other turn backwards, so that long and short ones even out."""
    program, programs = gl.program_id(0), gl.num_programs(0)
    return turn * programs + gl.where(turn % 2 == 0, program, programs - 1 - program)


@gluon.jit
def _consume(
    queries, q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len, out, R, scale,
    HALF: gl.constexpr, REQUESTS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
    PAGE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PAGE, 16])
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    live, most = _extent(query_begin, R, GROUP, REQUESTS, 4)
    base = gl.to_tensor(0)
    for turn in range(gl.cdiv(most * live * HEADS, gl.num_programs(0))):
        number = _number(turn)
        head = number % HEADS
        _r, begin, live_rows, prefix, row0, blocks, masked = _place(
            number, live, most, query_begin, context_len, HEADS, GROUP, PAGE
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
            inverse = 1.0 / total
            value = (end_last(token, v_empty, base - 1) * inverse[:, None]).to(gl.bfloat16)
            store_rows(queries, value, out + first_cell, row0, live_rows, GROUP, HEADS * GROUP, DIM, tile)


@gluon.jit
def _produce(
    page_table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len,
    R, max_pages,
    REQUESTS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    live, most = _extent(query_begin, R, GROUP, REQUESTS, 1)
    base = gl.to_tensor(0)
    for turn in range(gl.cdiv(most * live * HEADS, gl.num_programs(0))):
        number = _number(turn)
        r, _begin, _live_rows, _prefix, _row0, blocks, _masked = _place(
            number, live, most, query_begin, context_len, HEADS, GROUP, PAGE
        )
        if blocks > 0:
            produce(
                page_table + r * max_pages, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty,
                base, 0, blocks, number % HEADS, HEADS, PAGE,
            )  # fmt: skip
            base += blocks


@gluon.jit(do_not_specialize=["R", "max_pages"])
def attend_causal(
    q, keys, values, page_table, query_begin, context_len, out,
    R, max_pages, scale,
    REQUESTS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
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
                R, scale, 0, REQUESTS, HEADS, GROUP, DIM, PAGE,
            )),
            (_consume, (
                queries.index(1), q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len, out,
                R, scale, 1, REQUESTS, HEADS, GROUP, DIM, PAGE,
            )),
            (_produce, (
                page_table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len,
                R, max_pages, REQUESTS, HEADS, GROUP, PAGE,
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
    layout = gl.NVMMASharedLayout.get_default_for([page, dim], gl.bfloat16)
    attend_causal[(min(tiles, multiprocessors(q.device)),)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [page, dim], layout),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [page, dim], layout),
        page_table, query_begin, context_len, out,
        requests, page_table.shape[1], scale * LOG2_E,
        REQUESTS=max(32, triton.next_power_of_2(requests)), HEADS=heads, GROUP=group, DIM=dim, PAGE=page,
        num_warps=4, maxnreg=168,
    )  # fmt: skip
    return out
