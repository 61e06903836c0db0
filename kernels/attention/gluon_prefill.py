"""``paged_prefill_attention`` for Hopper, bfloat16, heads and pages of 128."""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.gluon_pages import ROWS, STAGES, attend_pages, fill_queries, make_barriers, produce

LOG2_E = 1.4426950408889634


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _consume(
    queries, q, k_ring, v_ring, k_full, k_empty, v_full, v_empty, blocks, masked, prefix, row0, live_rows, out, scale,
    GROUP: gl.constexpr, QUERY_HEADS: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PAGE, 16])
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    fill_queries(queries, q, row0, live_rows, GROUP, QUERY_HEADS, DIM, tile)
    rows = row0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, layout))
    peak = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(1, layout))
    total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, layout))
    sums, _, total = attend_pages(
        queries, k_ring, v_ring, k_full, k_empty, v_full, v_empty, 0, blocks, masked, prefix + rows // GROUP,
        peak, total, scale, DIM, PAGE, layout,
    )  # fmt: skip
    at = (rows // GROUP).to(gl.int64) * QUERY_HEADS + rows % GROUP
    value = (sums / total[:, None]).to(gl.bfloat16)
    gl.store(out + at[:, None] * DIM + columns[None, :], value, mask=(rows < live_rows)[:, None])


@gluon.jit(do_not_specialize=["R", "max_pages"])
def attend_causal(
    q, keys, values, page_table, query_begin, context_len, out,
    R, max_pages, scale,
    REQUESTS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """Program ``(block of 128 rows, KV head)``; a row is a token and one of the head's query heads."""
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    head = gl.program_id(1)
    requests = gl.arange(0, REQUESTS, layout=flat)
    there = requests < R
    begins = gl.load(query_begin + requests, mask=there, other=0)
    ends = gl.load(query_begin + requests + 1, mask=there, other=0)
    upto = gl.associative_scan(((ends - begins) * GROUP + 2 * ROWS - 1) // (2 * ROWS), 0, _add)
    r = gl.sum((upto <= gl.program_id(0)).to(gl.int32), 0)
    if r >= R:
        return
    begin = gl.load(query_begin + r)
    tokens = gl.load(query_begin + r + 1) - begin
    length = gl.load(context_len + r)
    live_rows = tokens * GROUP
    prefix = length - tokens
    row0 = (gl.max(gl.where(requests == r, upto, 0), 0) - 1 - gl.program_id(0)) * (2 * ROWS)  # longest first
    blocks = gl.minimum(prefix + (row0 + 2 * ROWS - 1) // GROUP, length - 1) // PAGE + 1
    masked = gl.maximum(blocks - (prefix + row0 // GROUP + 1) // PAGE, 1)

    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, DIM], gl.bfloat16)
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, DIM], shared)
    first_cell = (begin.to(gl.int64) * (HEADS * GROUP) + head * GROUP) * DIM
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
                queries.index(0), q + first_cell, k_ring, v_ring, k_full, k_empty, v_full, v_empty, blocks, masked,
                prefix, row0, live_rows, out + first_cell, scale, GROUP, HEADS * GROUP, DIM, PAGE,
            )),
            (_consume, (
                queries.index(1), q + first_cell, k_ring, v_ring, k_full, k_empty, v_full, v_empty, blocks, masked,
                prefix, row0 + ROWS, live_rows, out + first_cell, scale, GROUP, HEADS * GROUP, DIM, PAGE,
            )),
            (produce, (
                page_table + r * max_pages, keys, values, k_ring, v_ring, k_full, k_empty, v_full, v_empty,
                0, blocks, head, HEADS, PAGE,
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
    layout = gl.NVMMASharedLayout.get_default_for([page, dim], gl.bfloat16)
    attend_causal[(triton.cdiv(tokens * group, 2 * ROWS.value) + requests, heads)](
        q, TensorDescriptor.from_tensor(k_pages.view(-1, dim), [page, dim], layout),
        TensorDescriptor.from_tensor(v_pages.view(-1, dim), [page, dim], layout),
        page_table, query_begin, context_len, out,
        requests, page_table.shape[1], scale * LOG2_E,
        REQUESTS=triton.next_power_of_2(requests), HEADS=heads, GROUP=group, DIM=dim, PAGE=page,
        num_warps=4, maxnreg=168,
    )  # fmt: skip
    return out
