"""``paged_prefill_attention`` in Triton: packed requests of mixed lengths, a resident prefix plus new tokens."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention import prefill
from kernels.attention.choice import fits_hopper, fits_triton
from kernels.attention.splits import PROMPTS, TILE_ROWS, PromptRule
from kernels.attention.triton_decode import attend_block
from kernels.attention.triton_prompts import PromptParts, prompt_split_size
from kernels.attention.triton_splits import LOG2_E

_LOWEST = tl.constexpr(-1e38)
"""Below every score; unlike infinity it can be subtracted from itself."""


@triton.jit(do_not_specialize=["R", "room", "max_pages", "split_pages", "tiles", "wide"])
def attend_causal(
    q, keys, values, page_table, query_begin, context_len, out, part_values, part_logs,
    R, room, max_pages, split_pages, tiles, wide, scale,
    REQUESTS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Program ``(block of rows and split, KV head)``; a row is a token and one of the head's query heads, blocks per
    request.

    ``keys``, ``values``: descriptors of the pages as ``[pages * HEADS * PAGE, DIM]`` in blocks of ``KEYS``.
    ``part_values``, ``part_logs``: of requests that are split, see ``PromptParts``.
    """
    head = tl.program_id(1)
    requests = tl.arange(0, REQUESTS)
    there = requests < R
    begins = tl.load(query_begin + requests, mask=there, other=0)
    ends = tl.load(query_begin + requests + 1, mask=there, other=0)
    all_pages = tl.maximum((tl.load(context_len + requests, mask=there, other=0) + PAGE - 1) // PAGE, 1)
    sizes = prompt_split_size(all_pages, (ends - begins) * GROUP, split_pages, tiles, wide)
    programs = ((ends - begins) * GROUP + ROWS - 1) // ROWS * ((all_pages + sizes - 1) // sizes)
    programs_upto = tl.cumsum(programs, 0)
    r = tl.sum((programs_upto <= tl.program_id(0)).to(tl.int32), 0)
    if r >= R:
        return
    begin = tl.load(query_begin + r)
    tokens = tl.load(query_begin + r + 1) - begin
    length = tl.load(context_len + r)
    pages = (length + PAGE - 1) // PAGE
    size = prompt_split_size(pages, tokens * GROUP, split_pages, tiles, wide)
    blocks = (tokens * GROUP + ROWS - 1) // ROWS
    number = tl.program_id(0) - tl.max(tl.where(requests == r, programs_upto - programs, 0), 0)
    split = number // blocks
    block = blocks - 1 - number % blocks  # longest first

    rows = block * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    lanes = tl.arange(0, KEYS)
    token = rows // GROUP
    some = token < tokens
    position = length - tokens + token
    at = (begin + token).to(tl.int64) * (HEADS * GROUP) + head * GROUP + rows % GROUP
    cells = at[:, None] * DIM + columns[None, :]
    first_key = split * size * PAGE
    end = tl.minimum(length - tokens + (block * ROWS + ROWS - 1) // GROUP + 1, length)
    if first_key >= end:
        return
    end = tl.minimum(end, first_key + size * PAGE)
    first_position = length - tokens + block * ROWS // GROUP
    full_end = tl.minimum((first_position + 1) // KEYS * KEYS, end)  # every row sees all keys before this one
    full_end = tl.maximum(full_end, first_key)
    q_rows = tl.load(q + cells, mask=some[:, None], other=0.0)

    peak = tl.full([ROWS], _LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    table = page_table + r * max_pages
    page = tl.load(table + first_key // PAGE)
    for start in tl.range(first_key, full_end, KEYS):
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
    total = tl.where(total > 0, total, 1.0)  # a row that sees nothing of this split
    value = (sums / total[:, None]).to(out.dtype.element_ty)
    if size >= pages:
        tl.store(out + cells, value, mask=some[:, None])
    else:
        part = (r.to(tl.int64) * room + split * tokens + token) * (HEADS * GROUP) + head * GROUP + rows % GROUP
        tl.store(part_values + part[:, None] * DIM + columns[None, :], value, mask=some[:, None])
        tl.store(part_logs + part, peak + tl.log2(total), mask=some)


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
    rule: PromptRule = PROMPTS,
) -> Tensor:
    """Plain Triton. ``rule``: how the contexts of requests with few new tokens are split."""
    tokens, query_heads, dim = q.shape
    heads, page = k_pages.shape[1], k_pages.shape[2]
    group, requests = query_heads // heads, len(context_len)
    out = torch.empty_like(q)
    rows, block = (64, 64) if q.dtype == torch.bfloat16 else (16, 32)
    block = min(block, page)
    parts = PromptParts.of(q, requests, group, page_table.shape[1], rule)
    blocks = triton.cdiv(tokens * group, rows) + requests
    more = min((parts.splits - 1) * blocks, requests * rule.tiles * (TILE_ROWS // rows))
    attend_causal[(blocks + more, heads)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [block, dim]),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [block, dim]),
        page_table, query_begin, context_len, out, parts.values, parts.logs,
        requests, parts.room, page_table.shape[1], rule.pages, rule.tiles, rule.wide, scale * LOG2_E,
        REQUESTS=triton.next_power_of_2(requests), HEADS=heads, GROUP=group, DIM=dim, PAGE=page,
        ROWS=rows, KEYS=block, num_warps=4, num_stages=3,
    )  # fmt: skip
    parts.join(query_begin, context_len, out, heads, page)
    return out
