"""What a batch is made of: sub-batches, policies, exclusions."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import NO_ITEMS, BeamPolicy, RecallRequest
from engine.runtime.plan import plan
from engine.runtime.prepared import PreparedRequest
from engine.search.exclusions import pack_exclusions
from engine.search.policy import BatchPolicy
from kernels.backend import NO_ITEM

CPU = torch.device("cpu")


def request(**changes: Any) -> RecallRequest:
    fields: dict[str, Any] = {"beam": BeamPolicy((4, 4)), "top_k": 3, "history": NO_ITEMS}
    return RecallRequest(**(fields | changes))


def prepared(place: int, pages: int, score: str) -> PreparedRequest:
    """Only what planning looks at."""
    return cast(PreparedRequest, SimpleNamespace(place=place, pages=pages, request=SimpleNamespace(score=score)))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from(("level", "vocab", "legal"))), max_size=30),
    st.integers(1, 5),
    st.integers(6, 12),
)
def test_sub_batches_hold_every_request_once_within_the_limits(
    sizes: list[tuple[int, str]], most: int, free: int
) -> None:
    requests = [prepared(place, pages, score) for place, (pages, score) in enumerate(sizes)]
    batches = list(plan(requests, most, free))
    assert sorted(item.place for batch in batches for item in batch) == list(range(len(sizes)))
    for batch in batches:
        assert 1 <= len(batch) <= most
        assert sum(item.pages for item in batch) <= free
        assert len({item.request.score == "vocab" for item in batch}) == 1
        assert [item.place for item in batch] == sorted(item.place for item in batch)


def test_no_beam_is_wider_than_the_prefixes_of_its_own_catalog() -> None:
    requests = [
        request(beam=BeamPolicy((10, 20), margin=1.5, min_width=3), score="legal", max_items_per_sid=2),
        request(beam=BeamPolicy((5, 5)), top_k=5),
    ]
    policy = BatchPolicy.of(requests, [(7, 100), (1000, 4)], CPU)
    assert [width.tolist() for width in policy.widths] == [[7, 5], [20, 4]]
    assert policy.out_widths == (7, 20)
    assert policy.margin.tolist() == [1.5, torch.inf]
    assert policy.min_width.tolist() == [3, 1]
    assert policy.legal.tolist() == [True, False]
    assert policy.max_per_leaf.tolist() == [2, torch.iinfo(torch.int32).max]
    assert (policy.top_k.tolist(), policy.out_items) == ([3, 5], 5)


def test_exclusions_are_sorted_and_leave_out_what_the_filter_does() -> None:
    live = torch.tensor([0, 1, 1, 2, 3, 3], dtype=torch.int32)  # items 0, 2 and 3 pass
    rows = [np.array(items, dtype=np.int32) for items in ([0, 1, 3, 4], [], [2])]
    packed = pack_exclusions(rows, [live, live, live])
    assert packed.dtype == torch.int32
    assert packed.tolist() == [
        [0, 3, NO_ITEM, NO_ITEM],
        [NO_ITEM] * 4,
        [2, NO_ITEM, NO_ITEM, NO_ITEM],
    ]


def test_without_exclusions_there_is_no_column() -> None:
    empty = np.empty(0, dtype=np.int32)
    assert pack_exclusions([empty, empty], [torch.zeros(2, dtype=torch.int32)] * 2).shape == (2, 0)
