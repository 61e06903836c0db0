"""``beam_decode_attention`` for Hopper, bfloat16, heads and pages of 128."""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.gluon_pages import ROWS, STAGES, attend_pages, fill_queries, make_barriers, produce
from kernels.attention.triton_decode import LOG2_E, default_split_pages, merge


@gluon.jit
def _own_tokens(
    own, path, row0, last_row, path_step, step_stride,
    GROUP: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr, STEPS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Keys or values of the rows' own tokens, a tile ``[ROWS, DIM]`` a step, zero from ``last_row`` on."""
    rows = row0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, layout))
    some = rows < last_row
    slots = ()
    for step in gl.static_range(STEPS):
        slots = slots + (gl.load(path + step * path_step + rows // GROUP, mask=some, other=0),)
    tiles = ()
    for step in gl.static_range(STEPS):
        cells = (slots[step] * (KV_HEADS * DIM))[:, None] + columns[None, :]
        tile = gl.load(own + step * step_stride.to(gl.int64) + cells, mask=some[:, None], other=0.0)
        tiles = tiles + (tile,)
    return tiles


@gluon.jit
def _consume(
    queries, q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, first, blocks, length, row0, live_rows, split,
    own_k, own_v, path, path_step, step_stride, out, part_log, W, scale,
    GROUP: gl.constexpr, QUERY_HEADS: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    STEPS: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """The own tokens' scores are taken while the first pages come; their values are added at the end."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PAGE, 16])
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    by_row: gl.constexpr = gl.SliceLayout(1, layout)
    last_row = gl.where(split == 0, live_rows, 0)  # of the rows with own tokens here
    q_rows = fill_queries(queries, q, row0, live_rows, GROUP, QUERY_HEADS, DIM, tile)
    peak = gl.full([ROWS], float("-inf"), gl.float32, layout=by_row)
    total = gl.zeros([ROWS], gl.float32, layout=by_row)
    keys = _own_tokens(own_k, path, row0, last_row, path_step, step_stride, GROUP, KV_HEADS, DIM, STEPS, tile)
    wide_q = q_rows.to(gl.float32) * scale
    has_own = row0 + gl.arange(0, ROWS, layout=by_row) < last_row
    scores = ()
    for step in gl.static_range(STEPS):
        score = gl.convert_layout(gl.sum(wide_q * keys[step].to(gl.float32), 1), by_row)
        scores = scores + (gl.where(has_own, score, float("-inf")),)
    for step in gl.static_range(STEPS):
        peak = gl.maximum(peak, scores[step])
    base = gl.where(peak == float("-inf"), 0.0, peak)
    for step in gl.static_range(STEPS):
        total += gl.exp2(scores[step] - base)
    rows = row0 + gl.arange(0, ROWS, layout=by_row)
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, layout))
    position = gl.zeros([ROWS], gl.int32, layout=by_row) + (length - 1)
    sums, peak, total = attend_pages(
        queries, k_ring, v_ring, k_full, k_empty, v_full, v_empty, first, blocks, 1, position, peak, total, scale,
        DIM, PAGE, layout,
    )  # fmt: skip
    if split == 0:
        values = _own_tokens(own_v, path, row0, last_row, path_step, step_stride, GROUP, KV_HEADS, DIM, STEPS, layout)
        for step in gl.static_range(STEPS):
            sums += gl.exp2(scores[step] - peak)[:, None] * values[step].to(gl.float32)
    at = (rows // GROUP).to(gl.int64) * QUERY_HEADS + rows % GROUP
    value = sums / total[:, None]
    target = out + at[:, None] * DIM + columns[None, :]
    if WHOLE:
        value = gl.where((rows < live_rows)[:, None], value, 0.0)
        gl.store(target, value.to(gl.bfloat16), mask=(rows < W * GROUP)[:, None])
    else:
        gl.store(target, value, mask=(rows < live_rows)[:, None])
        gl.store(part_log + at, peak + gl.log2(total), mask=rows < live_rows)


@gluon.jit(do_not_specialize=["W", "R", "max_pages", "split_pages", "slots", "step_stride", "path_step", "path_row"])
def attend_beams(
    q, keys, values, page_table, context_len, width, own_k, own_v, path, out, part_log,
    W, R, max_pages, split_pages, slots, step_stride, path_step, path_row, scale,
    HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    STEPS: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Program ``(128 rows, KV head, split * R + request)``; arguments as in ``triton_decode.attend_beams``."""
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    head = gl.program_id(1)
    split = gl.program_id(2) // R
    r = gl.program_id(2) % R
    row0 = gl.program_id(0) * (2 * ROWS)
    live_rows = gl.load(width + r) * GROUP
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, tile))
    first_cell = (r.to(gl.int64) * W * (HEADS * GROUP) + head * GROUP) * DIM
    if row0 >= live_rows:
        if WHOLE:
            rows = row0 + gl.arange(0, 2 * ROWS, layout=gl.SliceLayout(1, tile))
            at = (rows // GROUP).to(gl.int64) * (HEADS * GROUP) + rows % GROUP
            nothing = gl.zeros([2 * ROWS, DIM], gl.bfloat16, layout=tile)
            gl.store(out + first_cell + at[:, None] * DIM + columns[None, :], nothing, mask=(rows < W * GROUP)[:, None])
        return
    length = gl.load(context_len + r)
    first = split * split_pages
    pages = (length + PAGE - 1) // PAGE
    if first >= pages:
        return
    blocks = gl.minimum(split_pages, pages - first)

    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, DIM], gl.bfloat16)
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, DIM], shared)
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, PAGE, DIM], keys.layout)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, PAGE, DIM], values.layout)
    k_full = make_barriers(1)
    v_full = make_barriers(1)
    k_empty = make_barriers(2)
    v_empty = make_barriers(2)
    fence_async_shared()
    part = (split * R * W).to(gl.int64) * (HEADS * GROUP)
    own = r.to(gl.int64) * slots * (HEADS * DIM) + head * DIM
    target = out + part * DIM + first_cell
    log_target = part_log + part + r * W * (HEADS * GROUP) + head * GROUP
    gl.warp_specialize(
        [
            (_consume, (
                queries.index(0), q + first_cell, k_ring, v_ring, k_full, k_empty, v_full, v_empty, first, blocks,
                length, row0, live_rows, split, own_k + own, own_v + own, path + r * path_row, path_step, step_stride,
                target, log_target, W, scale, GROUP, HEADS * GROUP, HEADS, DIM, PAGE, STEPS, WHOLE,
            )),
            (_consume, (
                queries.index(1), q + first_cell, k_ring, v_ring, k_full, k_empty, v_full, v_empty, first, blocks,
                length, row0 + ROWS, live_rows, split, own_k + own, own_v + own, path + r * path_row, path_step,
                step_stride, target, log_target, W, scale, GROUP, HEADS * GROUP, HEADS, DIM, PAGE, STEPS, WHOLE,
            )),
            (produce, (
                page_table + r * max_pages, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty,
                first, blocks, head, HEADS, PAGE,
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
    """As ``triton_decode.beam_decode_attention``; contexts of at least one token."""
    requests, beams, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group = query_heads // heads
    max_pages = page_table.shape[1]
    split_pages = split_pages or default_split_pages(beams * group)
    splits = triton.cdiv(max_pages, split_pages)
    out = torch.empty_like(q)
    part, part_log = out, out
    if splits > 1:
        part = torch.empty((splits, *q.shape), dtype=torch.float32, device=q.device)
        part_log = torch.empty((splits, *q.shape[:3]), dtype=torch.float32, device=q.device)
    layout = gl.NVMMASharedLayout.get_default_for([page, dim], gl.bfloat16)
    attend_beams[(triton.cdiv(beams * group, 2 * ROWS.value), heads, splits * requests)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [page, dim], layout),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [page, dim], layout),
        page_table, context_len, width, own_k, own_v, path, part, part_log,
        beams, requests, max_pages, split_pages, own_k.shape[2], own_k.stride(0), path.stride(0), path.stride(1),
        scale * LOG2_E,
        HEADS=heads, GROUP=group, DIM=dim, PAGE=page, STEPS=own_k.shape[0], WHOLE=splits == 1,
        num_warps=4, maxnreg=168,
    )  # fmt: skip
    if splits > 1:
        merge[(triton.cdiv(beams * query_heads, 16), requests)](
            part, part_log, context_len, width, out, beams, requests, split_pages * page,
            HEADS=query_heads, DIM=dim, ROWS=16, num_warps=4,
        )  # fmt: skip
    return out
