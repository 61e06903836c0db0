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
    produce,
    start_last,
    store_rows,
)
from kernels.attention.splits import PROMPTS, PromptRule
from kernels.attention.triton_prompts import PromptParts, prompt_split_size
from kernels.attention.triton_splits import LOG2_E
from kernels.gluon_copies import make_barriers


@gluon.jit
def _extent(
    query_begin, context_len, R, split_pages, most_tiles, wide,
    GROUP: gl.constexpr, PAGE: gl.constexpr, REQUESTS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Requests up to the last that has tokens, and the most tiles of a head that one of them has."""
    flat: gl.constexpr = gl.BlockedLayout([REQUESTS // 32], [32], [WARPS], [0])
    requests = gl.arange(0, REQUESTS, layout=flat)
    begins = gl.load(query_begin + requests, mask=requests < R, other=0)
    rows = (gl.load(query_begin + requests + 1, mask=requests < R, other=0) - begins) * GROUP
    pages = gl.maximum((gl.load(context_len + requests, mask=requests < R, other=0) + PAGE - 1) // PAGE, 1)
    size = prompt_split_size(pages, rows, split_pages, most_tiles, wide)
    tiles = (rows + 2 * ROWS - 1) // (2 * ROWS) * ((pages + size - 1) // size)
    return gl.max(gl.where(rows > 0, requests + 1, 0), 0), gl.max(tiles, 0)


@gluon.jit
def _place(
    number, live, most, query_begin, context_len, split_pages, most_tiles, wide,
    HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """Request, rows, split (-1 where it has none) and pages of tile ``number``; no pages where it has no such tile.

    The last tiles of all requests come first: they have most to do.
    """
    tile = most - 1 - number // (HEADS * live)
    r = number // HEADS % live
    begin = gl.load(query_begin + r)
    tokens = gl.load(query_begin + r + 1) - begin
    length = gl.load(context_len + r)
    pages = gl.maximum((length + PAGE - 1) // PAGE, 1)
    size = prompt_split_size(pages, tokens * GROUP, split_pages, most_tiles, wide)
    row_blocks = (tokens * GROUP + 2 * ROWS - 1) // (2 * ROWS)
    prefix = length - tokens
    row0 = tile % gl.maximum(row_blocks, 1) * (2 * ROWS)
    split = tile // gl.maximum(row_blocks, 1)
    first = split * size
    end = gl.minimum(prefix + (row0 + 2 * ROWS - 1) // GROUP, length - 1) // PAGE + 1
    blocks = gl.minimum(end - first, size)
    blocks = gl.where((tile >= 0) & (row_blocks > 0), gl.maximum(blocks, 0), 0)
    seen_by_all = (prefix + row0 // GROUP + 1) // PAGE
    masked = gl.minimum(gl.maximum(first + blocks - seen_by_all, 1), blocks)
    return r, begin, tokens, prefix, row0, gl.where(size < pages, split, -1), first, blocks, masked


@gluon.jit
def _number(turn):
    """The tile of this program's ``turn``: every other turn backwards, so that long and short ones even out."""
    program, programs = gl.program_id(0), gl.num_programs(0)
    return turn * programs + gl.where(turn % 2 == 0, program, programs - 1 - program)


@gluon.jit
def _consume(
    queries, q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len, out, part_values, part_logs,
    R, room, split_pages, most_tiles, wide, scale,
    HALF: gl.constexpr, REQUESTS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
    PAGE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PAGE, 16])
    wide_loads: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    by_row: gl.constexpr = gl.SliceLayout(1, layout)
    live, most = _extent(query_begin, context_len, R, split_pages, most_tiles, wide, GROUP, PAGE, REQUESTS, 4)
    base = gl.to_tensor(0)
    for turn in range(gl.cdiv(most * live * HEADS, gl.num_programs(0))):
        number = _number(turn)
        head = number % HEADS
        r, begin, tokens, prefix, row0, split, first, blocks, masked = _place(
            number, live, most, query_begin, context_len, split_pages, most_tiles, wide, HEADS, GROUP, PAGE
        )
        row0 += HALF * ROWS
        live_rows = tokens * GROUP
        if blocks > 0:
            mine = (begin.to(gl.int64) * (HEADS * GROUP) + head * GROUP) * DIM
            queries.store(load_queries(q + mine, row0, live_rows, GROUP, HEADS * GROUP, DIM, wide_loads))
            fence_async_shared()
            rows = row0 + gl.arange(0, ROWS, layout=by_row)
            peak = gl.full([ROWS], float("-inf"), gl.float32, layout=by_row)
            total = gl.zeros([ROWS], gl.float32, layout=by_row)
            p, sums, peak, total = attend_pages(
                queries, k_ring, v_ring, k_full, k_empty, v_full, v_empty, base, first, blocks, masked,
                prefix + rows // GROUP, peak, total, scale, DIM, PAGE, layout,
            )  # fmt: skip
            base += blocks
            token = start_last(p, sums, v_ring, v_full, base - 1)
            inverse = 1.0 / total  # infinite where a row sees nothing of a split; nobody reads that part
            part = (r.to(gl.int64) * room + split * tokens) * (HEADS * GROUP) + head * GROUP
            log = part_logs + part + rows // GROUP * (HEADS * GROUP) + rows % GROUP
            gl.store(log, peak + gl.log2(total), mask=(rows < live_rows) & (split >= 0))
            value = (end_last(token, v_empty, base - 1) * inverse[:, None]).to(gl.bfloat16)
            there = out + mine
            if split >= 0:
                there = part_values + part * DIM
            store_rows(queries, value, there, row0, live_rows, GROUP, HEADS * GROUP, DIM, wide_loads)


@gluon.jit
def _produce(
    page_table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len,
    R, max_pages, split_pages, most_tiles, wide,
    REQUESTS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    live, most = _extent(query_begin, context_len, R, split_pages, most_tiles, wide, GROUP, PAGE, REQUESTS, 1)
    base = gl.to_tensor(0)
    for turn in range(gl.cdiv(most * live * HEADS, gl.num_programs(0))):
        number = _number(turn)
        r, _begin, _tokens, _prefix, _row0, _split, first, blocks, _masked = _place(
            number, live, most, query_begin, context_len, split_pages, most_tiles, wide, HEADS, GROUP, PAGE
        )
        if blocks > 0:
            produce(
                page_table + r * max_pages, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty,
                base, first, blocks, number % HEADS, HEADS, PAGE,
            )  # fmt: skip
            base += blocks


@gluon.jit(do_not_specialize=["R", "max_pages", "room", "split_pages", "most_tiles", "wide"])
def attend_causal(
    q, keys, values, page_table, query_begin, context_len, out, part_values, part_logs,
    R, max_pages, room, split_pages, most_tiles, wide, scale,
    REQUESTS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """As many programs as the device runs at once. A tile is 128 rows of a KV head and one split of their pages, a row
    is a token and a query head. ``part_values``, ``part_logs``: of requests that are split, see ``PromptParts``.
    """
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, DIM], gl.bfloat16)
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, DIM], shared)
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, PAGE, DIM], keys.layout)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, PAGE, DIM], values.layout)
    k_full = make_barriers(1, STAGES)
    v_full = make_barriers(1, STAGES)
    k_empty = make_barriers(2, STAGES)
    v_empty = make_barriers(2, STAGES)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                queries.index(0), q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len, out,
                part_values, part_logs, R, room, split_pages, most_tiles, wide, scale,
                0, REQUESTS, HEADS, GROUP, DIM, PAGE,
            )),
            (_consume, (
                queries.index(1), q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len, out,
                part_values, part_logs, R, room, split_pages, most_tiles, wide, scale,
                1, REQUESTS, HEADS, GROUP, DIM, PAGE,
            )),
            (_produce, (
                page_table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, query_begin, context_len,
                R, max_pages, split_pages, most_tiles, wide, REQUESTS, HEADS, GROUP, PAGE,
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
    rule: PromptRule = PROMPTS,
) -> Tensor:
    """As the torch twin, all arrays contiguous. ``rule``: how the contexts of a few new tokens are split."""
    tokens, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group, requests = query_heads // heads, len(context_len)
    out = torch.empty_like(q)
    parts = PromptParts.of(q, requests, group, page_table.shape[1], rule)
    blocks = triton.cdiv(tokens * group, 2 * ROWS.value) + requests
    tiles = (blocks + min((parts.splits - 1) * blocks, requests * rule.tiles)) * heads
    layout = gl.NVMMASharedLayout.get_default_for([page, dim], gl.bfloat16)
    attend_causal[(min(tiles, multiprocessors(q.device)),)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [page, dim], layout),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [page, dim], layout),
        page_table, query_begin, context_len, out, parts.values, parts.logs,
        requests, page_table.shape[1], parts.room, rule.pages, rule.tiles, rule.wide, scale * LOG2_E,
        REQUESTS=max(32, triton.next_power_of_2(requests)), HEADS=heads, GROUP=group, DIM=dim, PAGE=page,
        num_warps=4, maxnreg=168,
    )  # fmt: skip
    parts.join(query_begin, context_len, out, heads, page)
    return out
