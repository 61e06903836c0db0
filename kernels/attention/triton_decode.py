"""``beam_decode_attention`` in Triton: a request's context is read once for all of its beams."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention import decode
from kernels.attention.choice import fits_hopper, fits_triton

LOG2_E = 1.4426950408889634
SPLIT_PAGES = ((256, 10), (1024, 20), (1 << 31, 1 << 20))
"""Most query rows of a KV head, context pages of a program. Measured: benchmarks/results/kernels-h200.json."""


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


@triton.jit
def _attend_own(
    q, own_k, own_v, path, path_stride, step_stride, slot_stride, some, scale, columns, STEPS: tl.constexpr
):
    """The rows' own tokens, each in the slot that its ancestor had at that step; ``path``: a pointer for each row."""
    rows: tl.constexpr = q.shape[0]
    peak = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    sums = tl.zeros([rows, q.shape[1]], tl.float32)
    for step in tl.static_range(STEPS):
        slot = tl.load(path + step * path_stride, mask=some, other=0).to(tl.int64)
        own = step * step_stride.to(tl.int64) + slot * slot_stride
        k = tl.load(own_k + own[:, None] + columns[None, :], mask=some[:, None], other=0.0).to(tl.float32)
        v = tl.load(own_v + own[:, None] + columns[None, :], mask=some[:, None], other=0.0).to(tl.float32)
        score = tl.sum(q.to(tl.float32) * k, 1) * scale
        new_peak = tl.maximum(peak, score)
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak)
        sums = sums * shrink[:, None] + v * weight[:, None]
        total = total * shrink + weight
        peak = new_peak
    return peak, total, sums


@triton.jit(do_not_specialize=["W", "R", "max_pages", "split_pages", "slots", "step_stride", "path_step", "path_row"])
def attend_beams(
    q, keys, values, page_table, context_len, width, own_k, own_v, path, out, part_log,
    W, R, max_pages, split_pages, slots, step_stride, path_step, path_row, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Program ``(ROWS rows, KV head, split * R + request)``; a row is a beam and one of the head's query heads.

    ``keys``, ``values``: descriptors of the pages as ``[pages * HEADS * PAGE, DIM]`` in blocks of ``KEYS``. Split 0
    also takes the beams' own tokens. ``WHOLE``: there is one split, and ``out`` is the result; else the normalised
    part ``out[split, r, b, h]`` in float32, with its log2-sum-exp in ``part_log[split, r, b, h]``.
    """
    head = tl.program_id(1)
    split = tl.program_id(2) // R
    r = tl.program_id(2) % R
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    lanes = tl.arange(0, KEYS)
    b = rows // GROUP
    at = ((r * W + b) * (HEADS * GROUP) + head * GROUP + rows % GROUP).to(tl.int64)
    cells = at[:, None] * DIM + columns[None, :]
    live_rows = tl.load(width + r) * GROUP
    if tl.program_id(0) * ROWS >= live_rows:
        if WHOLE:
            tl.store(out + cells, tl.zeros([ROWS, DIM], out.dtype.element_ty), mask=(b < W)[:, None])
        return
    length = tl.load(context_len + r)
    begin = split * split_pages * PAGE
    if (begin >= length) & (split > 0):
        return
    end = tl.minimum(begin + split_pages * PAGE, length)
    full_end = begin + (end - begin) // KEYS * KEYS

    some = rows < live_rows
    q_rows = tl.load(q + cells, mask=some[:, None], other=0.0)
    table = page_table + r * max_pages
    page = tl.load(table + begin // PAGE)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    if split == 0:
        own = r.to(tl.int64) * slots * (HEADS * DIM) + head * DIM
        peak, total, sums = _attend_own(
            q_rows, own_k + own, own_v + own, path + r * path_row + b, path_step, step_stride, HEADS * DIM,
            some, scale, columns, STEPS,
        )  # fmt: skip
    for start in tl.range(begin, full_end, KEYS):
        here = (page * HEADS + head) * PAGE + start % PAGE
        following = start + KEYS  # read one block ahead, or the pipeline would wait for the page number
        page = tl.load(table + following // PAGE, mask=following < end, other=0)
        k = keys.load([here, 0])
        v = values.load([here, 0])
        peak, total, sums = attend_block(q_rows, k, v, peak, total, sums, scale, lanes[None, :], False)
    if full_end < end:
        here = (tl.load(table + full_end // PAGE) * HEADS + head) * PAGE + full_end % PAGE
        inside = lanes < end - full_end
        k = keys.load([here, 0])
        v = values.load([here, 0])
        v = tl.where(inside[:, None], v, tl.zeros_like(v))
        peak, total, sums = attend_block(q_rows, k, v, peak, total, sums, scale, inside[None, :], True)

    value = sums / tl.where(some, total, 1.0)[:, None]
    if WHOLE:
        value = tl.where(some[:, None], value, 0.0)
        tl.store(out + cells, value.to(out.dtype.element_ty), mask=(b < W)[:, None])
    else:
        part = (split * R * W).to(tl.int64) * (HEADS * GROUP)
        tl.store(out + part * DIM + cells, value, mask=some[:, None])
        tl.store(part_log + part + at, peak + tl.log2(total), mask=some)


@triton.jit(do_not_specialize=["W", "R", "split_tokens"])
def merge(
    part_out, part_log, context_len, width, out, W, R, split_tokens,
    HEADS: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program ``(ROWS rows, request)``; a row is a beam and a query head. Joins the splits."""
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    some = rows < tl.load(width + r) * HEADS
    at = (r * W * HEADS + rows).to(tl.int64)
    cells = at[:, None] * DIM + columns[None, :]
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    parts = tl.maximum((tl.load(context_len + r) + split_tokens - 1) // split_tokens, 1)
    part = tl.zeros([], tl.int64)
    step = R * W * HEADS
    while part < parts:
        log = tl.load(part_log + part * step + at, mask=some, other=0.0)
        value = tl.load(part_out + part * step * DIM + cells, mask=some[:, None], other=0.0)
        new_peak = tl.maximum(peak, log)
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(log - new_peak)
        sums = sums * shrink[:, None] + value * weight[:, None]
        total = total * shrink + weight
        peak = new_peak
        part += 1
    value = sums / total[:, None]
    tl.store(out + cells, value.to(out.dtype.element_ty), mask=(rows < W * HEADS)[:, None])


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
    """As the torch twin; steps of ``own``, rows of ``path`` and all the rest contiguous.

    ``split_pages``: context pages of one program, which decides the last bits of a result. The default depends on the
    batch's widest beam, and on nothing else of the batch.
    """
    if not fits_triton(q.shape[-1]):
        return decode.beam_decode_attention(
            q, k_pages, v_pages, page_table, context_len, own_k, own_v, path, width, scale
        )
    args = q, k_pages, v_pages, page_table, context_len, own_k, own_v, path, width, scale, split_pages
    if fits_hopper(q, k_pages):
        from kernels.attention.gluon_decode import beam_decode_attention as for_hopper

        return for_hopper(*args)
    return portable_decode(*args)


def portable_decode(
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
    """Plain Triton."""
    requests, beams, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group = query_heads // heads
    steps, slots = own_k.shape[0], own_k.shape[2]
    max_pages = page_table.shape[1]
    split_pages = split_pages or default_split_pages(beams * group)
    splits = triton.cdiv(max_pages, split_pages)
    rows, keys = (64, 64) if q.dtype == torch.bfloat16 else (16, 32)
    keys = min(keys, page)
    out = torch.empty_like(q)
    part, part_log = out, out
    if splits > 1:
        part = torch.empty((splits, *q.shape), dtype=torch.float32, device=q.device)
        part_log = torch.empty((splits, *q.shape[:3]), dtype=torch.float32, device=q.device)
    attend_beams[(triton.cdiv(beams * group, rows), heads, splits * requests)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [keys, dim]),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [keys, dim]),
        page_table, context_len, width, own_k, own_v, path, part, part_log,
        beams, requests, max_pages, split_pages, slots, own_k.stride(0), path.stride(0), path.stride(1),
        scale * LOG2_E,
        HEADS=heads, GROUP=group, DIM=dim, PAGE=page, ROWS=rows, KEYS=keys, STEPS=steps, WHOLE=splits == 1,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        merge[(triton.cdiv(beams * query_heads, 16), requests)](
            part, part_log, context_len, width, out, beams, requests, split_pages * page,
            HEADS=query_heads, DIM=dim, ROWS=16, num_warps=4,
        )  # fmt: skip
    return out


def default_split_pages(rows: int) -> int:
    """Context pages of one program for ``rows`` query rows of a KV head: many rows fill a device by themselves."""
    return next(pages for most, pages in SPLIT_PAGES if rows <= most)
