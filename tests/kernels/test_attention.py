"""The attention twins against float64."""

import numpy as np
import pytest
import torch

from kernels.attention.decode import beam_decode_attention
from kernels.attention.prefill import paged_prefill_attention
from tests.kernels.plain import attend, paged


@pytest.mark.parametrize(
    ("lengths", "widths", "steps", "heads", "kv_heads", "head_dim", "page"),
    [
        ((1,), (1,), 1, 1, 1, 2, 8),
        ((7, 8, 9), (3, 1, 5), 1, 4, 2, 6, 8),
        ((130, 1, 128), (5, 0, 2), 3, 6, 3, 16, 128),
        ((200, 33), (9, 4), 4, 8, 1, 8, 16),
        ((5, 5), (-1, 3), 2, 2, 2, 4, 4),
    ],
)
def test_beams_attend_to_the_shared_context_and_to_their_own_ancestors(
    lengths: tuple[int, ...],
    widths: tuple[int, ...],
    steps: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page: int,
) -> None:
    random = torch.Generator().manual_seed(steps)
    context = paged(lengths, kv_heads, head_dim, page, seed=steps)
    requests, rows, slots = len(lengths), max(widths), max(widths) + 2
    q = torch.randn((requests, rows, heads, head_dim), generator=random)
    own_k = torch.randn((steps, requests, slots, kv_heads, head_dim), generator=random)
    own_v = torch.randn((steps, requests, slots, kv_heads, head_dim), generator=random)
    path = torch.randint(0, slots, (steps, requests, rows), generator=random, dtype=torch.int32)
    out = beam_decode_attention(
        q,
        context.k_pages,
        context.v_pages,
        context.page_table,
        context.context_len,
        own_k,
        own_v,
        path,
        torch.tensor(widths, dtype=torch.int32),
        head_dim**-0.5,
    )
    for r, width in enumerate(widths):
        for b in range(max(width, 0)):
            own = [(t, r, int(path[t, r, b])) for t in range(steps)]
            keys = torch.cat([context.keys[r], torch.stack([own_k[at] for at in own])])
            values = torch.cat([context.values[r], torch.stack([own_v[at] for at in own])])
            np.testing.assert_allclose(out[r, b], attend(q[r, b], keys, values, head_dim**-0.5), atol=2e-6)
        assert not out[r, max(width, 0) :].any()


@pytest.mark.parametrize(
    ("lengths", "new", "heads", "kv_heads", "head_dim", "page"),
    [
        ((1,), (1,), 1, 1, 2, 8),
        ((9, 16, 1), (9, 16, 1), 4, 2, 6, 8),
        ((130, 257), (130, 257), 6, 3, 16, 128),
        ((130, 40, 12), (3, 1, 12), 8, 1, 8, 16),
        ((20, 20), (0, 5), 2, 2, 4, 4),
    ],
)
def test_prefill_is_causal_over_a_resident_prefix_and_the_new_tokens(
    lengths: tuple[int, ...], new: tuple[int, ...], heads: int, kv_heads: int, head_dim: int, page: int
) -> None:
    random = torch.Generator().manual_seed(heads)
    context = paged(lengths, kv_heads, head_dim, page, seed=heads)
    begin = np.concatenate([[0], np.cumsum(new)])
    q = torch.randn((int(begin[-1]), heads, head_dim), generator=random)
    out = paged_prefill_attention(
        q,
        context.k_pages,
        context.v_pages,
        context.page_table,
        torch.tensor(begin, dtype=torch.int32),
        context.context_len,
        head_dim**-0.5,
    )
    for r, (length, count) in enumerate(zip(lengths, new, strict=True)):
        for i in range(count):
            seen, row = length - count + i + 1, int(begin[r]) + i
            expected = attend(q[row], context.keys[r][:seen], context.values[r][:seen], head_dim**-0.5)
            np.testing.assert_allclose(out[row], expected, atol=2e-6)


def test_attention_holds_for_products_up_to_ten_thousand() -> None:
    context = paged((300,), 1, 16, 128, seed=3, gain=600.0)
    q = torch.full((1, 1, 1, 16), 8.0)
    own = torch.zeros((1, 1, 1, 1, 16))
    index = torch.zeros((1, 1, 1), dtype=torch.int32)
    one = torch.ones(1, dtype=torch.int32)
    pages = context.k_pages, context.v_pages, context.page_table
    assert (context.keys[0].double() @ q[0, 0, 0].double()).abs().max() > 1e4
    out = beam_decode_attention(q, *pages, context.context_len, own, own, index, one, 1.0)
    expected = attend(q[0, 0], torch.cat([context.keys[0], own[0, 0]]), torch.cat([context.values[0], own[0, 0]]), 1.0)
    np.testing.assert_allclose(out[0, 0], expected, atol=1e-4)
    prefill = paged_prefill_attention(q[0], *pages, torch.tensor([0, 1], dtype=torch.int32), context.context_len, 1.0)
    np.testing.assert_allclose(prefill[0], attend(q[0, 0], context.keys[0], context.values[0], 1.0), atol=1e-4)


def test_bfloat16_inputs_are_accumulated_in_float32() -> None:
    context = paged((1000,), 1, 16, 128, seed=4)
    q = torch.randn((1, 2, 2, 16), generator=torch.Generator().manual_seed(4)).bfloat16()
    k_pages, v_pages = context.k_pages.bfloat16(), context.v_pages.bfloat16()
    own = torch.zeros((1, 1, 2, 1, 16), dtype=torch.bfloat16)
    path = torch.arange(2, dtype=torch.int32).view(1, 1, 2)
    width = torch.tensor([2], dtype=torch.int32)
    inputs = (context.page_table, context.context_len)
    exact = beam_decode_attention(
        q.float(), k_pages.float(), v_pages.float(), *inputs, own.float(), own.float(), path, width, 0.25
    )
    rounded = beam_decode_attention(q, k_pages, v_pages, *inputs, own, own, path, width, 0.25)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded, exact.bfloat16(), rtol=0, atol=0)
