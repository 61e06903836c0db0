"""The kernels for Hopper against float64, each query by itself."""

import pytest
import torch

from kernels.attention.splits import PROMPTS, PromptRule
from tests.kernels.device import error, tolerance
from tests.kernels.test_triton_attention import Pages, exact

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a Hopper device")]


def contexts(lengths: list[int], heads: int) -> Pages:
    """What lies past the end of a context is finite here, and large."""
    pages = Pages(lengths, heads, 128, 128, "cuda", torch.bfloat16)
    pages.k, pages.v = pages.k.nan_to_num(99.0), pages.v.nan_to_num(99.0)
    return pages


@pytest.mark.parametrize(
    ("lengths", "widths", "heads", "group", "steps", "split_pages"),
    [
        ([1000, 1, 300], [70, 3, 64], 2, 2, 2, 1 << 20),
        ([1000, 128, 129], [70, 1, 33], 2, 2, 2, 2),
        ([600, 20], [40, 0], 1, 7, 3, 3),
        ([257], [200], 2, 1, 1, 1 << 20),
        ([513, 40], [0, 9], 2, 4, 2, 1 << 20),
        ([900, 2600, 0, 131], [256, 100, 0, 256], 8, 2, 2, 3),
        ([2700, 130], [256, 256], 8, 2, 2, None),
    ],
)
def test_decode_attends_to_the_context_and_to_its_own_ancestors(
    lengths: list[int], widths: list[int], heads: int, group: int, steps: int, split_pages: int | None
) -> None:
    from kernels.attention.gluon_decode import beam_decode_attention

    generator = torch.Generator().manual_seed(7)
    requests, beams = len(lengths), max(widths)
    pages = contexts(lengths, heads)
    q = torch.randn(requests, beams, heads * group, 128, generator=generator).bfloat16()
    own = torch.randn(2, steps, requests, beams, heads, 128, generator=generator).bfloat16()
    path = torch.randint(0, beams, (steps, requests, beams), generator=generator).int()
    width = torch.tensor(widths, dtype=torch.int32)
    actual = beam_decode_attention(
        q.cuda(), pages.k, pages.v, pages.table, pages.length, own[0].cuda(), own[1].cuda(), path.cuda(), width.cuda(),
        0.1, split_pages,
    )  # fmt: skip
    expected = torch.zeros(q.shape, dtype=torch.float64)
    for r in range(requests):
        for b in range(widths[r]):
            at = torch.arange(steps), r, path[:, r, b].long()
            k, v = (torch.cat([pages.contexts[r][i], own[i][at]]) for i in (0, 1))
            expected[r, b] = exact(q[r, b], k, v, 0.1)
    assert error(actual, expected) < tolerance(torch.bfloat16)
    for r in range(requests):
        assert not actual[r, widths[r] :].any()


@pytest.mark.parametrize(
    ("lengths", "new", "heads", "group", "rule"),
    [
        ([500, 1, 300], [500, 1, 20], 2, 2, PROMPTS),
        ([128, 330, 257], [128, 0, 1], 1, 3, PROMPTS),
        ([400, 128], [300, 64], 2, 1, PROMPTS),
        ([370], [200], 1, 7, PROMPTS),
        ([1500, 700, 1100, 700], [1500, 700, 64, 700], 8, 2, PROMPTS),
        ([5060], [61], 8, 2, PROMPTS),
        ([2500, 300, 1400, 2600, 0], [61, 300, 1, 200, 0], 8, 2, PromptRule(pages=3, tiles=16)),
        ([1290, 1281, 513], [64, 3, 100], 2, 2, PromptRule(pages=1, tiles=32)),  # rows that see nothing of a split
        ([700, 900], [20, 130], 1, 7, PromptRule(pages=2, tiles=8)),
    ],
)
def test_prefill_is_causal_over_a_resident_prefix(
    lengths: list[int], new: list[int], heads: int, group: int, rule: PromptRule
) -> None:
    from kernels.attention.gluon_prefill import paged_prefill_attention

    pages = contexts(lengths, heads)
    begin = torch.tensor([0, *new]).cumsum(0).int()
    q = torch.randn(int(begin[-1]), heads * group, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    actual = paged_prefill_attention(q.cuda(), pages.k, pages.v, pages.table, begin.cuda(), pages.length, 0.1, rule)
    rows = []
    for r, (length, tokens) in enumerate(zip(lengths, new, strict=True)):
        k, v = pages.contexts[r]
        for i in range(tokens):
            seen = length - tokens + i + 1
            rows.append(exact(q[int(begin[r]) + i], k[:seen], v[:seen], 0.1))
    assert error(actual, torch.stack(rows)) < tolerance(torch.bfloat16)


def test_the_splits_of_a_prefill_make_a_result_the_same_alone_and_in_a_batch() -> None:
    from kernels.attention.gluon_prefill import paged_prefill_attention

    lengths, new = [5060, 300, 2000, 3000], [61, 300, 1, 200]
    pages = contexts(lengths, 2)
    begin = torch.tensor([0, *new], device="cuda").cumsum(0).int()
    q = torch.randn(sum(new), 4, 128, generator=torch.Generator().manual_seed(3)).bfloat16().cuda()
    together = paged_prefill_attention(q, pages.k, pages.v, pages.table, begin, pages.length, 0.1)
    for r, tokens in enumerate(new):
        rows, one, held = slice(int(begin[r]), int(begin[r + 1])), slice(r, r + 1), -(-lengths[r] // 128)
        alone = paged_prefill_attention(
            q[rows].contiguous(), pages.k, pages.v, pages.table[one, :held].contiguous(),
            torch.tensor([0, tokens], dtype=torch.int32, device="cuda"), pages.length[one], 0.1,
        )  # fmt: skip
        assert torch.equal(alone, together[rows])


def test_the_measured_splits_make_a_result_the_same_alone_and_in_a_batch() -> None:
    from kernels.attention.gluon_decode import beam_decode_attention

    lengths, widths = [1000, 3000, 40, 1700], [64, 256, 9, 128]
    pages = contexts(lengths, 2)
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(4, 256, 4, 128, generator=generator).bfloat16().cuda()
    own = torch.randn(2, 1, 4, 256, 2, 128, generator=generator).bfloat16().cuda()
    path = torch.arange(256, dtype=torch.int32, device="cuda").expand(1, 4, 256).contiguous()
    width = torch.tensor(widths, dtype=torch.int32, device="cuda")
    together = beam_decode_attention(q, pages.k, pages.v, pages.table, pages.length, own[0], own[1], path, width, 0.1)
    for r in range(4):
        one, beams, held = slice(r, r + 1), widths[r], -(-lengths[r] // 128)
        mine = own[:, :, one, :beams].contiguous()
        alone = beam_decode_attention(
            q[one, :beams].contiguous(), pages.k, pages.v, pages.table[one, :held].contiguous(), pages.length[one],
            mine[0], mine[1], path[:, one, :beams].contiguous(), width[one], 0.1,
        )  # fmt: skip
        assert torch.equal(alone[0], together[r, :beams])
