"""``paged_prefill_attention`` in Triton: packed requests of mixed lengths, a resident prefix plus new tokens."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.triton_decode import LOG2_E, attend_block


@triton.jit(do_not_specialize=["R", "max_pages"])
def attend_causal(
    q, k_pages, v_pages, page_table, query_begin, context_len, out,
    R, max_pages, scale,
    REQUESTS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Program ``(block of rows, KV head)``; a row is a token and one of the head's query heads, blocks per request."""
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
    keys = tl.arange(0, KEYS)
    token = rows // GROUP
    some = token < tokens
    position = length - tokens + token
    at = (begin + token).to(tl.int64) * (HEADS * GROUP) + head * GROUP + rows % GROUP
    cells = at[:, None] * DIM + columns[None, :]
    q_rows = tl.load(q + cells, mask=some[:, None], other=0.0)
    area = keys[:, None] * DIM + columns[None, :]

    first_position = length - tokens + block * ROWS // GROUP
    end = tl.minimum(length - tokens + (block * ROWS + ROWS - 1) // GROUP + 1, length)
    full_end = (first_position + 1) // KEYS * KEYS  # every row sees all keys before this one
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    table = page_table + r * max_pages
    page = tl.load(table)
    for start in tl.range(0, full_end, KEYS):
        here = (page.to(tl.int64) * HEADS + head) * (PAGE * DIM) + (start % PAGE) * DIM
        following = start + KEYS  # read one block ahead, or the pipeline would wait for the page number
        page = tl.load(table + following // PAGE, mask=following < end, other=0)
        k = tl.load(k_pages + here + area)
        v = tl.load(v_pages + here + area)
        peak, total, sums = attend_block(q_rows, k, v, peak, total, sums, scale, some[:, None], False)
    for start in tl.range(full_end, end, KEYS):
        page = tl.load(table + start // PAGE)
        here = (page.to(tl.int64) * HEADS + head) * (PAGE * DIM) + (start % PAGE) * DIM
        inside = start + keys < end
        k = tl.load(k_pages + here + area, mask=inside[:, None], other=0.0)
        v = tl.load(v_pages + here + area, mask=inside[:, None], other=0.0)
        seen = (start + keys)[None, :] <= position[:, None]
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
    """As the torch twin; ``D`` a power of two of at least 16, all arrays contiguous."""
    tokens, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group, requests = query_heads // heads, len(context_len)
    out = torch.empty_like(q)
    wide = q.dtype == torch.bfloat16
    rows, keys = (128, 64) if wide else (32, 32)
    attend_causal[(triton.cdiv(tokens * group, rows) + requests, heads)](
        q, k_pages, v_pages, page_table, query_begin, context_len, out,
        requests, page_table.shape[1], scale * LOG2_E,
        REQUESTS=triton.next_power_of_2(requests), HEADS=heads, GROUP=group, DIM=dim, PAGE=page,
        ROWS=rows, KEYS=min(keys, page), num_warps=8 if wide else 4, num_stages=3 if wide else 2,
    )  # fmt: skip
    return out
