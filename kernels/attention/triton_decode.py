"""``beam_decode_attention`` in Triton: a request's context is read once for all of its beams."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention import decode
from kernels.attention.choice import fits_hopper, fits_triton
from kernels.attention.triton_splits import LOG2_E, Parts, split_size
from kernels.elementwise.triton_quantise import quantise
from kernels.linear.scaled import Fp8Matrix


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


@triton.jit(do_not_specialize=["W", "R", "max_pages", "split_pages", "wide"])
def attend_beams(
    q, keys, values, page_table, context_len, width, out, log_out,
    W, R, max_pages, split_pages, wide, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Program ``(ROWS rows, KV head, split * R + request)``; a row is a beam and one of the head's query heads.

    ``keys``, ``values``: descriptors of the pages as ``[pages * HEADS * PAGE, DIM]`` in blocks of ``KEYS``.
    ``out``, ``log_out``: ``Parts.values`` and ``Parts.logs``.
    """
    head = tl.program_id(1)
    split = tl.program_id(2) // R
    r = tl.program_id(2) % R
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    lanes = tl.arange(0, KEYS)
    at = (((split * R + r) * W + rows // GROUP) * (HEADS * GROUP) + head * GROUP + rows % GROUP).to(tl.int64)
    live_rows = tl.load(width + r) * GROUP
    length = tl.load(context_len + r)
    pages = (length + PAGE - 1) // PAGE
    size = split_size(pages, live_rows, split_pages, wide)
    begin = split * size * PAGE
    if (tl.program_id(0) * ROWS >= live_rows) | (begin >= length):
        return
    end = tl.minimum(begin + size * PAGE, length)
    full_end = begin + (end - begin) // KEYS * KEYS

    some = rows < live_rows
    cells = at[:, None] * DIM + columns[None, :]
    q_rows = tl.load(q + cells - (split * R * W).to(tl.int64) * (HEADS * GROUP * DIM), mask=some[:, None], other=0.0)
    table = page_table + r * max_pages
    page = tl.load(table + begin // PAGE)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
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
    tl.store(out + cells, (sums / total[:, None]).to(out.dtype.element_ty), mask=some[:, None])
    tl.store(log_out + at, peak + tl.log2(total), mask=some)


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
) -> Tensor:
    """As the torch twin; steps of ``own``, rows of ``path`` and all the rest contiguous."""
    if not fits_triton(q.shape[-1]):
        return decode.beam_decode_attention(
            q, k_pages, v_pages, page_table, context_len, own_k, own_v, path, width, scale
        )
    parts = _parts(q, k_pages, v_pages, page_table, context_len, width, scale)
    return parts.join(q, own_k, own_v, path, context_len, width, scale, k_pages.shape[2])


def beam_decode_attention_fp8(
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
) -> Fp8Matrix:
    """As the torch twin, rounded once; otherwise as ``beam_decode_attention``."""
    if not fits_triton(q.shape[-1]) or q.shape[2].bit_count() != 1:
        attended = beam_decode_attention(q, k_pages, v_pages, page_table, context_len, own_k, own_v, path, width, scale)
        return quantise(attended.flatten(0, 1).flatten(1))
    parts = _parts(q, k_pages, v_pages, page_table, context_len, width, scale)
    return parts.join_fp8(q, own_k, own_v, path, context_len, width, scale, k_pages.shape[2])


def _parts(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, context_len: Tensor, width: Tensor, scale: float
) -> Parts:
    """Attention over the contexts by the kernel for the device."""
    if fits_hopper(q, k_pages):
        from kernels.attention.gluon_decode import context_parts as for_hopper

        return for_hopper(q, k_pages, v_pages, page_table, context_len, width, scale)
    return context_parts(q, k_pages, v_pages, page_table, context_len, width, scale)


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
    """Attention over the contexts alone.

    ``split_pages``: context pages of one program, which decides the last bits of a result; the default does not depend
    on the batch (``SplitRule``).
    """
    requests, beams, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group = query_heads // heads
    parts = Parts.of(q, page_table.shape[1], split_pages)
    rows, keys = (64, 64) if q.dtype == torch.bfloat16 else (16, 32)
    keys = min(keys, page)
    attend_beams[(triton.cdiv(beams * group, rows), heads, parts.splits * requests)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [keys, dim]),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [keys, dim]),
        page_table, context_len, width, parts.values, parts.logs,
        beams, requests, page_table.shape[1], parts.rule.pages, parts.rule.wide, scale * LOG2_E,
        HEADS=heads, GROUP=group, DIM=dim, PAGE=page, ROWS=rows, KEYS=keys,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return parts
