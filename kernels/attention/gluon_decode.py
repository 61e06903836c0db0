"""``beam_decode_attention`` for Hopper, bfloat16, heads and pages of 128."""

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
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
from kernels.attention.triton_splits import LOG2_E, Parts, split_size
from kernels.gluon_copies import copy_in, make_barriers


@gluon.jit
def _place(
    tile, row_blocks, width, context_len, R, split_pages, wide,
    HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """First row, head, split and request of a tile; live rows and tokens of the request; pages of the tile.

    Splits are outermost, so that the tiles without pages come last.
    """
    row0 = tile % row_blocks * (2 * ROWS)
    head = tile // row_blocks % HEADS
    split = tile // (row_blocks * HEADS) // R
    r = tile // (row_blocks * HEADS) % R
    live_rows = gl.load(width + r) * GROUP
    length = gl.load(context_len + r)
    pages = (length + PAGE - 1) // PAGE
    size = split_size(pages, live_rows, split_pages, wide)
    first = split * size
    blocks = gl.where(row0 < live_rows, gl.maximum(gl.minimum(pages - first, size), 0), 0)
    return row0, head, split, r, live_rows, length, first, blocks


@gluon.jit
def _bring_queries(
    q, queries, full, tile, place, W, R, row_blocks, HALF: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr
):
    """Ask for one warp group's rows of a tile; in the place of beams that are not there comes what lies there."""
    beam = (tile % row_blocks * (2 * ROWS) + HALF * ROWS) // GROUP
    head = tile // row_blocks % HEADS
    r = tile // (row_blocks * HEADS) % R
    mbarrier.expect(full.index(place), q.block_type.nbytes)
    copy_in(q, [r * W + beam, head * GROUP, 0], full.index(place), queries.index(place))


@gluon.jit
def _consume(
    queries, q_full, q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, context_len, width, out, log_out,
    W, R, row_blocks, tiles, split_pages, wide, scale,
    HALF: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    BROUGHT: gl.constexpr,
):  # fmt: skip
    """With ``BROUGHT`` the next tile's rows are on their way meanwhile. Results go by way of the memory of the rows."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PAGE, 16])
    wide_loads: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    by_row: gl.constexpr = gl.SliceLayout(1, layout)
    base = gl.to_tensor(0)
    done = gl.to_tensor(0)
    if BROUGHT:
        _bring_queries(q, queries, q_full, gl.program_id(0), 2 * HALF, W, R, row_blocks, HALF, HEADS, GROUP)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        place = 2 * HALF + (done & 1)
        following = tile + gl.num_programs(0)
        if BROUGHT:
            if following < tiles:
                fence_async_shared()
                _bring_queries(q, queries, q_full, following, place ^ 1, W, R, row_blocks, HALF, HEADS, GROUP)
        row0, head, split, r, live_rows, length, first, blocks = _place(
            tile, row_blocks, width, context_len, R, split_pages, wide, HEADS, GROUP, PAGE
        )
        if BROUGHT:
            mbarrier.wait(q_full.index(place), (done >> 1) & 1)
        if blocks > 0:
            row0 += HALF * ROWS
            mine = queries.index(place).reshape([ROWS, DIM])
            if not BROUGHT:
                rows_of = q + (r.to(gl.int64) * W * (HEADS * GROUP) + head * GROUP) * DIM
                mine.store(load_queries(rows_of, row0, live_rows, GROUP, HEADS * GROUP, DIM, wide_loads))
                fence_async_shared()
            peak = gl.full([ROWS], float("-inf"), gl.float32, layout=by_row)
            total = gl.zeros([ROWS], gl.float32, layout=by_row)
            position = gl.zeros([ROWS], gl.int32, layout=by_row) + (length - 1)
            p, sums, peak, total = attend_pages(
                mine, k_ring, v_ring, k_full, k_empty, v_full, v_empty, base, first, blocks, 1, position,
                peak, total, scale, DIM, PAGE, layout,
            )  # fmt: skip
            base += blocks
            token = start_last(p, sums, v_ring, v_full, base - 1)
            rows = row0 + gl.arange(0, ROWS, layout=by_row)
            beam = ((split * R + r) * W + rows // GROUP).to(gl.int64)
            at = beam * (HEADS * GROUP) + head * GROUP + rows % GROUP
            inverse = 1.0 / total
            gl.store(log_out + at, peak + gl.log2(total), mask=rows < live_rows)
            value = (end_last(token, v_empty, base - 1) * inverse[:, None]).to(gl.bfloat16)
            there = out + (((split * R + r).to(gl.int64) * W) * (HEADS * GROUP) + head * GROUP) * DIM
            store_rows(mine, value, there, row0, live_rows, GROUP, HEADS * GROUP, DIM, wide_loads)
        done += 1


@gluon.jit
def _produce(
    page_table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, context_len, width,
    R, row_blocks, tiles, max_pages, split_pages, wide,
    HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    base = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        _row0, head, _split, r, _live_rows, _length, first, blocks = _place(
            tile, row_blocks, width, context_len, R, split_pages, wide, HEADS, GROUP, PAGE
        )
        if blocks > 0:
            produce(
                page_table + r * max_pages, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty,
                base, first, blocks, head, HEADS, PAGE,
            )  # fmt: skip
            base += blocks


@gluon.jit(do_not_specialize=["W", "R", "row_blocks", "tiles", "max_pages", "split_pages", "wide"])
def attend_beams(
    q, keys, values, page_table, context_len, width, out, log_out,
    W, R, row_blocks, tiles, max_pages, split_pages, wide, scale,
    HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr, BROUGHT: gl.constexpr,
):  # fmt: skip
    """As many programs as the device runs at once; arguments as in ``triton_decode.attend_beams``.

    A tile is 128 rows of a KV head of a request and one split of its pages. ``BROUGHT``: ``q`` is a descriptor of
    ``[R * W, HEADS * GROUP, DIM]`` in blocks of one warp group's rows.
    """
    if BROUGHT:
        queries = gl.allocate_shared_memory(gl.bfloat16, [4] + q.block_type.shape, q.layout)
    else:
        shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, DIM], gl.bfloat16)
        queries = gl.allocate_shared_memory(gl.bfloat16, [4, ROWS, DIM], shared)
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, PAGE, DIM], keys.layout)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, PAGE, DIM], values.layout)
    q_full = make_barriers(1, 4)
    k_full = make_barriers(1, STAGES)
    v_full = make_barriers(1, STAGES)
    k_empty = make_barriers(2, STAGES)
    v_empty = make_barriers(2, STAGES)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                queries, q_full, q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, context_len, width, out, log_out,
                W, R, row_blocks, tiles, split_pages, wide, scale, 0, HEADS, GROUP, DIM, PAGE, BROUGHT,
            )),
            (_consume, (
                queries, q_full, q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, context_len, width, out, log_out,
                W, R, row_blocks, tiles, split_pages, wide, scale, 1, HEADS, GROUP, DIM, PAGE, BROUGHT,
            )),
            (_produce, (
                page_table, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty, context_len, width,
                R, row_blocks, tiles, max_pages, split_pages, wide, HEADS, GROUP, PAGE,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def beam_decode_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    context_len: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    path: Tensor,
    width: Tensor,
    scale: float,
    split_pages: int | None = None,
) -> Tensor:
    """As ``triton_decode.portable_decode``; contexts of at least one token."""
    parts = context_parts(q, k_pages, v_pages, page_table, context_len, width, scale, split_pages)
    return parts.join(q, own_k, own_v, path, context_len, width, scale, k_pages.shape[2])


def context_parts(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    context_len: Tensor,
    width: Tensor,
    scale: float,
    split_pages: int | None = None,
) -> Parts:
    """As ``triton_decode.context_parts``; contexts of at least one token."""
    requests, beams, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group = query_heads // heads
    parts = Parts.of(q, page_table.shape[1], split_pages)
    row_blocks = triton.cdiv(beams * group, 2 * ROWS.value)
    tiles = row_blocks * heads * parts.splits * requests
    layout = gl.NVMMASharedLayout.get_default_for([page, dim], gl.bfloat16)
    brought = group.bit_count() == 1 and group <= ROWS.value
    attend_beams[(min(tiles, multiprocessors(q.device)),)](
        _rows_descriptor(q, group) if brought else q,
        TensorDescriptor.from_tensor(k_pages.view(-1, dim), [page, dim], layout),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [page, dim], layout),
        page_table, context_len, width, parts.values, parts.logs,
        beams, requests, row_blocks, tiles, page_table.shape[1], parts.rule.pages, parts.rule.wide, scale * LOG2_E,
        HEADS=heads, GROUP=group, DIM=dim, PAGE=page, BROUGHT=brought, num_warps=4, maxnreg=168,
    )  # fmt: skip
    return parts


def _rows_descriptor(q: Tensor, group: int) -> TensorDescriptor:
    block = [ROWS.value // group, group, q.shape[-1]]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    return TensorDescriptor.from_tensor(q.flatten(0, 1), block, layout)
