"""``paged_prefill_attention`` in Triton: packed requests of mixed lengths, a resident prefix plus new tokens."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention import prefill
from kernels.attention.choice import fits_hopper, fits_triton
from kernels.attention.triton_decode import attend_block
from kernels.attention.triton_splits import LOG2_E


@triton.jit(do_not_specialize=["R", "max_pages"])
def attend_causal(
    q, keys, values, page_table, query_begin, context_len, out,
    R, max_pages, scale,
    REQUESTS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Program ``(block of rows, KV head)``; a row is a token and one of the head's query heads, blocks per request.

    ``keys``, ``values``: descriptors of the pages as ``[pages * HEADS * PAGE, DIM]`` in blocks of ``KEYS``.
    """
    head = tl.program_id(1)
    requests = tl.arange(0, REQUESTS)
    there = requests < R
    begins = tl.load(query_begin + requests, mask=there, other=0)
    ends = tl.load(query_begin + requests + 1, mask=there, other=0)
    blocks = tl.cumsum(((ends - begins) * GROUP + ROWS - 1) // ROWS, 0)
    r = tl.sum((blocks <= tl.program_id(0)).to(tl.int32), 0)
    if r >= R:
        return
    begin = tl.load(query_begin + r)
    tokens = tl.load(query_begin + r + 1) - begin
    length = tl.load(context_len + r)
    blocks_here = (tokens * GROUP + ROWS - 1) // ROWS
    blocks_before = tl.max(tl.where(requests == r, blocks, 0), 0) - blocks_here
    block = blocks_here - 1 - (tl.program_id(0) - blocks_before)  # longest first

    rows = block * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    lanes = tl.arange(0, KEYS)
    token = rows // GROUP
    some = token < tokens
    position = length - tokens + token
    at = (begin + token).to(tl.int64) * (HEADS * GROUP) + head * GROUP + rows % GROUP
    cells = at[:, None] * DIM + columns[None, :]
    q_rows = tl.load(q + cells, mask=some[:, None], other=0.0)

    first_position = length - tokens + block * ROWS // GROUP
    end = tl.minimum(length - tokens + (block * ROWS + ROWS - 1) // GROUP + 1, length)
    full_end = (first_position + 1) // KEYS * KEYS  # every row sees all keys before this one
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    table = page_table + r * max_pages
    page = tl.load(table)
    for start in tl.range(0, full_end, KEYS):
        here = (page * HEADS + head) * PAGE + start % PAGE
        following = start + KEYS  # read one block ahead, or the pipeline would wait for the page number
        page = tl.load(table + following // PAGE, mask=following < end, other=0)
        k = keys.load([here, 0])
        v = values.load([here, 0])
        peak, total, sums = attend_block(q_rows, k, v, peak, total, sums, scale, some[:, None], False)
    for start in tl.range(full_end, end, KEYS):
        here = (tl.load(table + start // PAGE) * HEADS + head) * PAGE + start % PAGE
        k = keys.load([here, 0])
        v = values.load([here, 0])
        v = tl.where((start + lanes < end)[:, None], v, tl.zeros_like(v))
        seen = (start + lanes)[None, :] <= position[:, None]
        peak, total, sums = attend_block(q_rows, k, v, peak, total, sums, scale, seen, True)
    value = (sums / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + cells, value, mask=some[:, None])


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
    if not fits_triton(q.shape[-1]):
        return prefill.paged_prefill_attention(q, k_pages, v_pages, page_table, query_begin, context_len, scale)
    if fits_hopper(q, k_pages):
        from kernels.attention.gluon_prefill import paged_prefill_attention as for_hopper

        return for_hopper(q, k_pages, v_pages, page_table, query_begin, context_len, scale)
    return portable_prefill(q, k_pages, v_pages, page_table, query_begin, context_len, scale)


def portable_prefill(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    query_begin: Tensor,
    context_len: Tensor,
    scale: float,
) -> Tensor:
    """Plain Triton."""
    tokens, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group, requests = query_heads // heads, len(context_len)
    out = torch.empty_like(q)
    rows, block = (64, 64) if q.dtype == torch.bfloat16 else (16, 32)
    block = min(block, page)
    attend_causal[(triton.cdiv(tokens * group, rows) + requests, heads)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [block, dim]),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [block, dim]),
        page_table, query_begin, context_len, out,
        requests, page_table.shape[1], scale * LOG2_E,
        REQUESTS=triton.next_power_of_2(requests), HEADS=heads, GROUP=group, DIM=dim, PAGE=page,
        ROWS=rows, KEYS=block, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out
