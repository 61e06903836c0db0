"""Attention kernels against float64, each query by itself."""

from itertools import product

import numpy as np
import pytest
import torch
import triton
from packaging.version import parse
from torch import Tensor

from kernels.attention import prefill
from kernels.attention.splits import PROMPTS, TILE_ROWS, PromptRule
from kernels.attention.triton_decode import portable_decode
from kernels.attention.triton_prefill import paged_prefill_attention, portable_prefill
from tests.kernels.device import EVERYWHERE, error, tolerance

PAGE = 16
LOOPS = torch.cuda.is_available() or parse(triton.__version__) >= parse("3.9") or parse(np.__version__) < parse("2.4")
pytestmark = pytest.mark.skipif(not LOOPS, reason="the interpreter of Triton before 3.9 has no loops with NumPy 2.4")


def exact(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """``q`` ``[Hq, D]`` over ``k``, ``v`` ``[n, Hkv, D]`` in float64."""
    group = q.shape[0] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    return torch.einsum("hn,nhd->hd", (torch.einsum("hd,nhd->hn", q.double(), k) * scale).softmax(dim=-1), v)


class Pages:
    """Random contexts in shuffled pages; everything past a context's end is NaN, which must never show."""

    def __init__(self, lengths: list[int], heads: int, dim: int, page: int, device: str, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(sum(lengths) + heads)
        longest = max(-(-n // page) for n in lengths)
        pages = longest * len(lengths) + 1
        order = torch.randperm(pages, generator=generator)
        self.table = order[: longest * len(lengths)].view(len(lengths), longest).int()
        self.contexts = [
            torch.randn(2, n, heads, dim, generator=generator).to(dtype) for n in lengths
        ]  # keys and values
        self.k = torch.full((pages, heads, page, dim), torch.nan, dtype=dtype)
        self.v = self.k.clone()
        for row, (k, v) in zip(self.table, self.contexts, strict=True):
            for i in range(len(k)):
                self.k[row[i // page], :, i % page] = k[i]
                self.v[row[i // page], :, i % page] = v[i]
        self.length = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.k, self.v, self.table = self.k.to(device), self.v.to(device), self.table.to(device)


@EVERYWHERE
@pytest.mark.parametrize(
    ("lengths", "widths", "heads", "group", "dim", "steps", "split_pages"),
    [
        ([37, 1, 80], [5, 3, 1], 2, 2, 16, 2, 2),
        ([16, 33, 5], [1, 7, 4], 1, 3, 32, 1, 1),
        ([50, 20], [4, 0], 2, 1, 16, 3, 10),
        ([97], [40], 2, 1, 16, 2, 3),
    ],
)
def test_decode_attends_to_the_context_and_to_its_own_ancestors(
    device: str,
    dtype: torch.dtype,
    lengths: list[int],
    widths: list[int],
    heads: int,
    group: int,
    dim: int,
    steps: int,
    split_pages: int,
) -> None:
    generator = torch.Generator().manual_seed(7)
    requests, beams = len(lengths), max(widths)
    pages = Pages(lengths, heads, dim, PAGE, device, dtype)
    q = torch.randn(requests, beams, heads * group, dim, generator=generator).to(dtype)
    own = torch.randn(2, steps, requests, beams, heads, dim, generator=generator).to(dtype)
    path = torch.randint(0, beams, (steps, requests, beams + 3), generator=generator).int()[:, :, :beams]  # strided
    width = torch.tensor(widths, dtype=torch.int32)
    actual = portable_decode(
        q.to(device), pages.k, pages.v, pages.table, pages.length,
        own[0].to(device), own[1].to(device), path.to(device), width.to(device), 0.3, split_pages,
    )  # fmt: skip
    expected = torch.zeros(q.shape, dtype=torch.float64)
    for r in range(requests):
        for b in range(widths[r]):
            at = torch.arange(steps), r, path[:, r, b].long()
            k, v = (torch.cat([pages.contexts[r][i], own[i][at]]) for i in (0, 1))
            expected[r, b] = exact(q[r, b], k, v, 0.3)
    assert error(actual, expected) < tolerance(dtype)
    for r in range(requests):
        assert not actual[r, widths[r] :].any()


@EVERYWHERE
def test_decode_is_the_same_for_a_request_alone_and_in_a_batch(device: str, dtype: torch.dtype) -> None:
    pages = Pages([70, 9, 33], 2, 16, PAGE, device, dtype)
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(3, 6, 4, 16, generator=generator).to(device, dtype)
    own = torch.randn(2, 1, 3, 6, 2, 16, generator=generator).to(device, dtype)
    path = torch.arange(6, dtype=torch.int32, device=device).expand(1, 3, 6).contiguous()
    width = torch.tensor([6, 2, 5], dtype=torch.int32, device=device)
    together = portable_decode(q, pages.k, pages.v, pages.table, pages.length, own[0], own[1], path, width, 0.25, 2)
    for r in range(3):
        one = slice(r, r + 1)
        alone = portable_decode(
            q[one], pages.k, pages.v, pages.table[one], pages.length[one],
            own[0][:, one].contiguous(), own[1][:, one].contiguous(), path[:, one].contiguous(), width[one], 0.25, 2,
        )  # fmt: skip
        assert torch.equal(alone[0], together[r])


@EVERYWHERE
def test_decode_holds_for_scores_of_ten_thousand(device: str, dtype: torch.dtype) -> None:
    pages = Pages([40], 1, 16, PAGE, device, dtype)
    q = torch.full((1, 2, 1, 16), 1.0)
    q[0, 1] = -1.0
    own = torch.ones(2, 1, 1, 2, 1, 16)
    path = torch.zeros(1, 1, 2, dtype=torch.int32)
    width = torch.tensor([2], dtype=torch.int32)
    scale = 1e4 / 16
    args = [x.to(device, dtype) for x in (q, own[0], own[1])]
    actual = portable_decode(
        args[0], pages.k, pages.v, pages.table, pages.length, args[1], args[2], path.to(device), width.to(device), scale
    )
    expected = torch.zeros(q.shape, dtype=torch.float64)
    for b in range(2):
        k, v = (torch.cat([pages.contexts[0][i], own[i, :, 0, 0].to(dtype)]) for i in (0, 1))
        expected[0, b] = exact(q[0, b], k, v, scale)
    assert error(actual, expected) < max(tolerance(dtype), 1e-3)


@EVERYWHERE
@pytest.mark.parametrize(
    ("lengths", "new", "heads", "group", "dim"),
    [
        ([37, 1, 80], [37, 1, 20], 2, 2, 16),
        ([16, 33, 50], [16, 0, 1], 1, 3, 32),
        ([100], [100], 1, 1, 16),
    ],
)
def test_prefill_is_causal_over_a_resident_prefix(
    device: str, dtype: torch.dtype, lengths: list[int], new: list[int], heads: int, group: int, dim: int
) -> None:
    pages = Pages(lengths, heads, dim, PAGE, device, dtype)
    begin = torch.tensor([0, *new]).cumsum(0).int()
    q = torch.randn(int(begin[-1]), heads * group, dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    actual = portable_prefill(q.to(device), pages.k, pages.v, pages.table, begin.to(device), pages.length, 0.3)
    rows = []
    for r, (length, tokens) in enumerate(zip(lengths, new, strict=True)):
        k, v = pages.contexts[r]
        for i in range(tokens):
            seen = length - tokens + i + 1
            rows.append(exact(q[int(begin[r]) + i], k[:seen], v[:seen], 0.3))
    assert error(actual, torch.stack(rows)) < tolerance(dtype)


SPLIT = PromptRule(pages=1, tiles=4)


@EVERYWHERE
@pytest.mark.parametrize(
    ("lengths", "new", "heads", "group", "dim"),
    [
        ([97, 170, 40, 130], [12, 140, 3, 1], 2, 2, 16),  # the second has too many rows to be split
        ([50, 16, 33, 20], [8, 0, 1, 20], 1, 3, 32),  # one begins in its last split, one has nothing
        ([49], [2], 1, 1, 16),  # the last split holds the last row alone
        ([200, 100], [70, 20], 1, 2, 16),  # the first is two tiles, so it has half as many splits
    ],
)
def test_a_few_new_tokens_on_a_long_prefix_are_joined_from_the_splits_of_their_context(
    device: str, dtype: torch.dtype, lengths: list[int], new: list[int], heads: int, group: int, dim: int
) -> None:
    pages = Pages(lengths, heads, dim, PAGE, device, dtype)
    begin = torch.tensor([0, *new]).cumsum(0).int()
    q = torch.randn(int(begin[-1]), heads * group, dim, generator=torch.Generator().manual_seed(2)).to(dtype)
    args = q.to(device), pages.k, pages.v, pages.table, begin.to(device), pages.length, 0.3
    actual = portable_prefill(*args, SPLIT)
    rows = []
    for r, (length, tokens) in enumerate(zip(lengths, new, strict=True)):
        k, v = pages.contexts[r]
        for i in range(tokens):
            seen = length - tokens + i + 1
            rows.append(exact(q[int(begin[r]) + i], k[:seen], v[:seen], 0.3))
    assert error(actual, torch.stack(rows)) < tolerance(dtype)
    assert not torch.equal(actual, portable_prefill(*args, PromptRule(pages=1, tiles=1)))  # they really are split


@EVERYWHERE
def test_only_requests_of_few_query_rows_are_split(device: str, dtype: torch.dtype) -> None:
    pages = Pages([97, 60], 2, 16, PAGE, device, dtype)
    begin = torch.tensor([0, 5, 8], dtype=torch.int32, device=device)
    q = torch.randn(8, 4, 16, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    args = q, pages.k, pages.v, pages.table, begin, pages.length, 0.3
    whole, split = (portable_prefill(*args, PromptRule(pages=1, tiles=tiles)) for tiles in (1, 4))
    some = portable_prefill(*args, PromptRule(pages=1, tiles=4, wide=6))
    assert torch.equal(some[:5], whole[:5])
    assert torch.equal(some[5:], split[5:])
    assert not torch.equal(split, whole)


@EVERYWHERE
def test_splits_of_a_prefill_are_the_same_for_a_request_alone_and_in_a_batch(device: str, dtype: torch.dtype) -> None:
    lengths, new = [97, 30, 60, 150], [5, 30, 7, 70]
    pages = Pages(lengths, 2, 16, PAGE, device, dtype)
    begin = torch.tensor([0, *new], device=device).cumsum(0).int()
    q = torch.randn(sum(new), 4, 16, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    together = portable_prefill(q, pages.k, pages.v, pages.table, begin, pages.length, 0.3, SPLIT)
    for r, tokens in enumerate(new):
        rows, one = slice(int(begin[r]), int(begin[r + 1])), slice(r, r + 1)
        alone = portable_prefill(
            q[rows], pages.k, pages.v, pages.table[one],
            torch.tensor([0, tokens], dtype=torch.int32, device=device), pages.length[one], 0.3, SPLIT,
        )  # fmt: skip
        assert torch.equal(alone, together[rows])


@EVERYWHERE
def test_splits_of_a_prefill_hold_for_scores_of_ten_thousand(device: str, dtype: torch.dtype) -> None:
    pages = Pages([100], 1, 16, PAGE, device, dtype)
    q = torch.ones(3, 1, 16)
    q[1] = -1.0
    begin = torch.tensor([0, 3], dtype=torch.int32, device=device)
    scale = 1e4 / 16
    actual = portable_prefill(q.to(device, dtype), pages.k, pages.v, pages.table, begin, pages.length, scale, SPLIT)
    k, v = pages.contexts[0]
    expected = torch.stack([exact(q[i], k[: 98 + i], v[: 98 + i], scale) for i in range(3)])
    assert error(actual, expected) < max(tolerance(dtype), 1e-3)


@pytest.mark.parametrize("tokens", [1, 61, 64, 65, 200, 256, 257, 512, 4096])
@pytest.mark.parametrize("pages", [1, 5, 6, 40, 41, 79, 400])
def test_a_prompt_has_no_more_splits_and_tokens_than_there_is_room_for(pages: int, tokens: int) -> None:
    for group, rule in product((1, 2, 7), (PROMPTS, SPLIT, PromptRule(3, 16))):
        blocks = -(-tokens * group // TILE_ROWS)
        splits = 1 if tokens * group > rule.wide else max(min(rule.tiles // blocks, pages // rule.pages), 1)
        assert splits <= rule.most_splits(pages)
        assert splits == 1 or tokens <= rule.most_tokens(tokens, group)
        assert splits == 1 or splits * tokens <= rule.room(tokens, group, pages)


def test_heads_that_fit_no_tile_are_left_to_the_twin() -> None:
    pages = Pages([20, 5], 2, 24, PAGE, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(6, 4, 24, generator=generator)
    begin = torch.tensor([0, 4, 6], dtype=torch.int32)
    args = pages.k.nan_to_num(), pages.v.nan_to_num(), pages.table, begin, pages.length, 0.2
    assert torch.equal(paged_prefill_attention(q, *args), prefill.paged_prefill_attention(q, *args))
