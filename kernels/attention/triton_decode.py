"""``beam_decode_attention`` in Triton: the context once for all beams of a request, then each beam's own tokens."""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
SPLIT_PAGES = 10
"""Context pages of one program. Fixed, so that a result never depends on the batch; measured: benchmarks/results."""


@triton.jit
def attend_block(q, k, v, peak, total, sums, scale, seen, MASKED: tl.constexpr):
    """One block of keys: rows ``[M, D]``, keys and values ``[N, D]``, ``seen`` ``[M or 1, N]``; log2 units."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
    return new_peak, total * shrink + tl.sum(weights, 1), sums


@triton.jit(do_not_specialize=["W", "R", "max_pages", "split_pages"])
def attend_context(
    q, k_pages, v_pages, page_table, context_len, width, part_out, part_log,
    W, R, max_pages, split_pages, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Program ``(ROWS rows, KV head, split * R + request)``; a row is a beam and one of the head's query heads.

    Writes the normalised sum ``part_out[split, r, b, h]`` and the log2-sum-exp ``part_log[split, r, b, h]``.
    """
    head = tl.program_id(1)
    split = tl.program_id(2) // R
    r = tl.program_id(2) % R
    live_rows = tl.load(width + r) * GROUP
    if tl.program_id(0) * ROWS >= live_rows:
        return
    length = tl.load(context_len + r)
    begin = split * split_pages * PAGE
    if begin >= length:
        return
    end = tl.minimum(begin + split_pages * PAGE, length)
    full_end = begin + (end - begin) // KEYS * KEYS

    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    keys = tl.arange(0, KEYS)
    at = (r * W + rows // GROUP) * (HEADS * GROUP) + head * GROUP + rows % GROUP
    some = rows < live_rows
    q_rows = tl.load(q + at.to(tl.int64)[:, None] * DIM + columns[None, :], mask=some[:, None], other=0.0)
    block = keys[:, None] * DIM + columns[None, :]

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    table = page_table + r * max_pages
    page = tl.load(table + begin // PAGE)
    for start in tl.range(begin, full_end, KEYS):
        here = (page.to(tl.int64) * HEADS + head) * (PAGE * DIM) + (start % PAGE) * DIM
        following = start + KEYS  # read one block ahead, or the pipeline would wait for the page number
        page = tl.load(table + following // PAGE, mask=following < end, other=0)
        k = tl.load(k_pages + here + block)
        v = tl.load(v_pages + here + block)
        peak, total, sums = attend_block(q_rows, k, v, peak, total, sums, scale, keys[None, :], False)
    if full_end < end:
        page = tl.load(table + full_end // PAGE)
        here = (page.to(tl.int64) * HEADS + head) * (PAGE * DIM) + (full_end % PAGE) * DIM
        inside = keys < end - full_end
        k = tl.load(k_pages + here + block, mask=inside[:, None], other=0.0)
        v = tl.load(v_pages + here + block, mask=inside[:, None], other=0.0)
        peak, total, sums = attend_block(q_rows, k, v, peak, total, sums, scale, inside[None, :], True)

    part = (split * R * W).to(tl.int64) * (HEADS * GROUP) + at
    tl.store(part_out + part[:, None] * DIM + columns[None, :], sums / total[:, None], mask=some[:, None])
    tl.store(part_log + part, peak + tl.log2(total), mask=some)


@triton.jit(do_not_specialize=["W", "R", "slots", "steps", "split_tokens", "step_stride"])
def merge_own(
    q, part_out, part_log, context_len, width, own_k, own_v, path, out,
    W, R, slots, steps, split_tokens, step_stride, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program ``(ROWS rows, KV head, request)``: joins the parts of the context with the beams' own tokens."""
    head = tl.program_id(1)
    r = tl.program_id(2)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    b = rows // GROUP
    some = b < tl.load(width + r)
    at = ((r * W + b) * (HEADS * GROUP) + head * GROUP + rows % GROUP).to(tl.int64)
    cells = at[:, None] * DIM + columns[None, :]
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)

    parts = (tl.load(context_len + r) + split_tokens - 1) // split_tokens
    part_step = R.to(tl.int64) * W * (HEADS * GROUP)
    part = tl.zeros([], tl.int32)
    while part < parts:
        log = tl.load(part_log + part * part_step + at, mask=some, other=0.0)
        value = tl.load(part_out + part * part_step * DIM + cells, mask=some[:, None], other=0.0)
        new_peak = tl.maximum(peak, log)
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(log - new_peak)
        sums = sums * shrink[:, None] + value * weight[:, None]
        total = total * shrink + weight
        peak = new_peak
        part += 1

    q_rows = tl.load(q + cells, mask=some[:, None], other=0.0).to(tl.float32) * scale
    step = tl.zeros([], tl.int32)
    while step < steps:
        slot = tl.load(path + (step * R + r) * W + b, mask=some, other=0)
        own = step.to(tl.int64) * step_stride + ((r * slots + slot) * HEADS + head).to(tl.int64) * DIM
        k = tl.load(own_k + own[:, None] + columns[None, :], mask=some[:, None], other=0.0).to(tl.float32)
        v = tl.load(own_v + own[:, None] + columns[None, :], mask=some[:, None], other=0.0).to(tl.float32)
        score = tl.sum(q_rows * k, 1)
        new_peak = tl.maximum(peak, score)
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak)
        sums = sums * shrink[:, None] + v * weight[:, None]
        total = total * shrink + weight
        peak = new_peak
        step += 1
    value = tl.where(some[:, None], sums / tl.where(some, total, 1.0)[:, None], 0.0)
    tl.store(out + cells, value.to(out.dtype.element_ty), mask=(b < W)[:, None])


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
    split_pages: int = SPLIT_PAGES,
) -> Tensor:
    """As the torch twin; ``D`` a power of two of at least 16, ``q``, pages, ``path`` and ``page_table`` contiguous."""
    requests, beams, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group = query_heads // heads
    steps, slots = own_k.shape[0], own_k.shape[2]
    splits = triton.cdiv(page_table.shape[1], split_pages)
    part_out = torch.empty((splits, requests, beams, query_heads, dim), dtype=torch.float32, device=q.device)
    part_log = torch.empty((splits, requests, beams, query_heads), dtype=torch.float32, device=q.device)
    out = torch.empty_like(q)
    block = 64 if q.dtype == torch.bfloat16 else 32
    attend_context[(triton.cdiv(beams * group, block), heads, splits * requests)](
        q, k_pages, v_pages, page_table, context_len, width, part_out, part_log,
        beams, requests, page_table.shape[1], split_pages, scale * LOG2_E,
        HEADS=heads, GROUP=group, DIM=dim, PAGE=page, ROWS=block, KEYS=min(block, page), num_warps=4, num_stages=3,
    )  # fmt: skip
    merge_own[(triton.cdiv(beams * group, 16), heads, requests)](
        q, part_out, part_log, context_len, width, own_k, own_v, path, out,
        beams, requests, slots, steps, split_pages * page, own_k.stride(0), scale * LOG2_E,
        HEADS=heads, GROUP=group, DIM=dim, ROWS=16, num_warps=4,
    )  # fmt: skip
    return out
