"""How a batch is cut into searches: every request once, computing least, and answers as if each ran alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import BeamPolicy
from engine.runtime.buckets import REQUESTS, WIDTHS, round_up
from engine.runtime.search_groups import SEARCH_ROWS, search_groups, width_order
from tests.engine.test_recall_engine import MODEL, assert_pool_is_whole, assert_same, engine_on, request
from tests.engine.tiny_models import write_model

Widths = tuple[int, ...]
POLICIES = st.lists(st.tuples(*[st.integers(1, 512)] * 3), min_size=1, max_size=7)


def rows(group: Sequence[Widths]) -> int:
    """Decoded rows of a search, as it is rounded up, and what it costs beside them."""
    widest = [max(round_up(WIDTHS, widths[level]) for widths in group) for level in range(2)]
    return 2 * SEARCH_ROWS + round_up(REQUESTS, len(group)) * sum(widest)


def every_cut(count: int) -> Iterator[list[slice]]:
    for mask in range(1 << (count - 1)):
        ends = [place + 1 for place in range(count - 1) if mask >> place & 1] + [count]
        yield [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


@given(POLICIES)
def test_no_other_cut_of_the_batch_computes_less(asked: list[Widths]) -> None:
    ordered = [asked[place] for place in width_order(asked)]
    groups = search_groups(ordered, REQUESTS, WIDTHS)
    assert [place for group in groups for place in range(group.start, group.stop)] == list(range(len(asked)))
    least = min(sum(rows(ordered[group]) for group in cut) for cut in every_cut(len(asked)))
    assert sum(rows(ordered[group]) for group in groups) == least


@given(st.lists(st.sampled_from(WIDTHS), min_size=1, max_size=16), st.integers(1, 3))
def test_the_order_puts_narrow_beams_first_and_keeps_the_callers_among_equals(widths: list[int], levels: int) -> None:
    asked = [(width,) * levels for width in widths]
    order = width_order(asked)
    assert order == sorted(range(len(widths)), key=lambda place: (widths[place], place))


@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_equal_beams_are_searched_together(count: int) -> None:
    assert search_groups([(256,) * 3] * count, REQUESTS, WIDTHS) == [slice(0, count)]


def test_one_level_decodes_nothing_and_needs_one_search() -> None:
    assert search_groups([(8,), (512,)], REQUESTS, WIDTHS) == [slice(0, 2)]


def test_beams_of_64_to_512_are_padded_by_less_than_a_quarter() -> None:
    random = np.random.default_rng(3)
    for count in (1, 2, 3, 4, 6, 8, 12, 16):
        wanted = computed = 0
        for _ in range(300):
            asked = sorted((int(width),) * 3 for width in random.integers(64, 513, count))
            groups = search_groups(asked, REQUESTS, WIDTHS)
            wanted += sum(2 * widths[0] for widths in asked)
            computed += sum(rows(asked[group]) - 2 * SEARCH_ROWS for group in groups)
        assert 1 - wanted / computed < 0.23


def test_answers_of_a_batch_that_is_searched_in_groups_are_those_of_each_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.runtime.search_groups.SEARCH_ROWS", 4)
    monkeypatch.setattr("engine.runtime.buckets.WIDTHS", (8, 24, 40))
    engine = engine_on(write_model(MODEL, tmp_path))
    random = np.random.default_rng(5)
    requests = [
        request(history=random.integers(0, 50, 4 + number), beam=BeamPolicy((width,) * 3), top_k=1)
        for number, width in enumerate((40, 8, 39, 1, 20, 8))
    ]
    alone = [engine.recall([each])[0] for each in requests]
    before = engine.stats()["eager_searches"]
    for ours, theirs in zip(engine.recall(requests), alone, strict=True):
        assert_same(ours, theirs)
    assert engine.stats()["eager_searches"] > before + 1
    assert_pool_is_whole(engine)


def test_narrow_beams_do_not_overtake_what_was_asked_for_before_them(tmp_path: Path) -> None:
    engine = engine_on(write_model(MODEL, tmp_path), max_batch_tokens=64)
    history = np.arange(10)  # some 30 tokens: two of them run at once
    requests = [request(history=history, beam=BeamPolicy((width,) * 3), top_k=1) for width in (40, 20, 1, 2, 8)]
    running = engine.submit(requests)
    parts = [[item.place for item in flight.batch] for flight in running._flights]  # noqa: SLF001
    running.collect()
    assert parts == [[1, 0], [2, 3], [4]]
