"""What a batch is made of: which requests, and the memory that their inputs are packed into."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import NO_ITEMS, BeamPolicy, RecallRequest
from engine.runtime.plan import BatchLimits, plan
from engine.runtime.prepared import PreparedRequest
from engine.runtime.search_input import SearchShape, pack_search, trie_columns
from kernels.backend import NO_ITEM

CPU = torch.device("cpu")


def planned(place: int, pages: int, score: str, width: int) -> PreparedRequest:
    """Only what planning looks at."""
    looked_at = SimpleNamespace(place=place, pages=pages, request=SimpleNamespace(score=score), widths=(width, 1))
    return cast(PreparedRequest, looked_at)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(("level", "vocab", "legal")), st.integers(1, 20)), max_size=30
    ),
    st.integers(1, 5),
    st.integers(6, 12),
    st.integers(32, 100),
)
def test_batches_hold_every_request_once_within_the_limits(
    sizes: list[tuple[int, str, int]], most: int, pages: int, rows: int
) -> None:
    requests = [planned(place, *size) for place, size in enumerate(sizes)]
    batches = list(plan(requests, BatchLimits(most, pages, rows, (1, 2, 4), (8, 32))))
    assert sorted(item.place for batch in batches for item in batch) == list(range(len(sizes)))
    for batch in batches:
        widest = max(item.widths[0] for item in batch)
        assert 1 <= len(batch) <= most
        assert sum(item.pages for item in batch) <= pages
        assert {1: 1, 2: 2, 3: 4, 4: 4, 5: 5}[len(batch)] * (8 if widest <= 8 else 32) <= rows
        assert len({item.request.score == "vocab" for item in batch}) == 1
        assert [item.place for item in batch] == sorted(item.place for item in batch)


def prepared(tokens: int, excluded: list[int], widths: tuple[int, ...], **changes: Any) -> PreparedRequest:
    """A request of a catalog of two levels."""
    fields: dict[str, Any] = {"beam": BeamPolicy((4, 4)), "top_k": 3, "history": NO_ITEMS}
    looked_at = SimpleNamespace(
        request=RecallRequest(**(fields | changes)),
        catalog=SimpleNamespace(levels=2, child_begin=tensors(2, 3), code=tensors(2, 3), item_begin=tensors(1, 3, 4)),
        prompt=SimpleNamespace(tokens=np.zeros(tokens, dtype=np.int32)),
        widths=widths,
        excluded=np.array(excluded, dtype=np.int32),
        live=torch.zeros(4, dtype=torch.int32),
        pages=-(-tokens // 128),
    )
    return cast(PreparedRequest, looked_at)


def tensors(*sizes: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.zeros(size, dtype=torch.int32) for size in sizes)


BATCH = [
    prepared(130, [2, 5], (2, 3), beam=BeamPolicy((7, 9), margin=1.5, min_width=3), score="legal", max_items_per_sid=2),
    prepared(7, [], (2, 1), top_k=1),
]
PAGES = [np.array([4, 9], dtype=np.int32), np.array([3], dtype=np.int32)]


def test_a_batch_needs_a_shape_of_its_widest_longest_and_most() -> None:
    assert SearchShape.of(BATCH) == SearchShape(2, (2, 3), 3, 2, 2, vocab=False)


def test_a_shape_holds_what_is_nowhere_larger_and_scored_alike() -> None:
    shape = SearchShape(2, (2, 3), 3, 2, 2, vocab=False)
    assert shape.holds(shape)
    assert shape.holds(SearchShape(1, (2, 1), 1, 1, 0, vocab=False))
    for larger in (
        SearchShape(3, (2, 3), 3, 2, 2, vocab=False),
        SearchShape(2, (3, 3), 3, 2, 2, vocab=False),
        SearchShape(2, (2, 4), 3, 2, 2, vocab=False),
        SearchShape(2, (2, 3), 4, 2, 2, vocab=False),
        SearchShape(2, (2, 3), 3, 3, 2, vocab=False),
        SearchShape(2, (2, 3), 3, 2, 3, vocab=False),
        SearchShape(2, (2, 3), 3, 2, 2, vocab=True),
    ):
        assert not shape.holds(larger)


def test_what_the_search_reads_of_each_request_stands_in_its_row() -> None:
    shape = SearchShape.of(BATCH)
    tries = trie_columns(BATCH, shape.requests)
    search = shape.input_over(pack_search(shape, BATCH, PAGES, tries, CPU), torch.zeros(2, 8), tries)
    policy = search.policy
    assert search.table.page_table.tolist() == [[4, 9], [3, 0]]
    assert search.table.length.tolist() == [130, 7]
    assert search.excluded.tolist() == [[2, 5], [NO_ITEM, NO_ITEM]]
    assert [width.tolist() for width in policy.widths] == [[2, 2], [3, 1]]
    assert (policy.out_widths, policy.out_items) == ((2, 3), 3)
    assert policy.margin.tolist() == [1.5, torch.inf]
    assert policy.min_width.tolist() == [3, 1]
    assert policy.legal.tolist() == [True, False]
    assert policy.max_per_leaf.tolist() == [2, torch.iinfo(torch.int32).max]
    assert policy.top_k.tolist() == [3, 1]
    for level, trie in enumerate(search.tries):
        for row, item in enumerate(BATCH):
            catalog = item.catalog
            arrays = catalog.child_begin[level], catalog.code[level], catalog.item_begin[level + 1], item.live
            held = trie.child_begin[row], trie.code[row], trie.item_begin[row], trie.live[row]
            assert all(ours is theirs for ours, theirs in zip(held, arrays, strict=True))
            assert trie.address[:, row].tolist() == [tensor.data_ptr() for tensor in arrays]


def test_a_larger_shape_pads_with_requests_that_have_no_context() -> None:
    shape = SearchShape(4, (8, 8), 8, 5, 6, vocab=False)
    tries = trie_columns(BATCH, 4)
    search = shape.input_over(pack_search(shape, BATCH, PAGES, tries, CPU), torch.zeros(4, 8), tries)
    assert search.table.length.tolist() == [130, 7, 0, 0]
    assert search.table.page_table.tolist() == [[4, 9, 0, 0, 0], [3, 0, 0, 0, 0], [0] * 5, [0] * 5]
    assert search.excluded.tolist() == [[2, 5] + [NO_ITEM] * 4] + [[NO_ITEM] * 6] * 3
    assert [width.tolist() for width in search.policy.widths] == [[2, 2, 0, 0], [3, 1, 0, 0]]
    assert search.policy.top_k.tolist() == [3, 1, 0, 0]
    assert search.tries[0].address[:, 2].equal(search.tries[0].address[:, 0])
