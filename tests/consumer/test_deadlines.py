"""Deadlines on the right clock, clamped, and in order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.deadlines import Deadline, DeadlineHeap, Moment
from consumer.stream.outage import Outage

NOW = Moment(wall_ms=1_000_000, monotonic=50.0)


def due(asked: int | None, timestamp: int = 1_000_000) -> float:
    return NOW.deadline(asked, timestamp, default_ms=2_000, maximum_ms=60_000)


def test_without_a_deadline_the_default_counts_from_the_record() -> None:
    assert due(None) == 52.0
    assert due(None, timestamp=999_000) == 51.0


def test_an_asked_deadline_is_taken_shorter_or_longer_than_the_default() -> None:
    assert due(1_000_500) == 50.5
    assert due(1_030_000) == 80.0


def test_a_deadline_in_the_past_is_in_the_past() -> None:
    assert due(999_000) == 49.0
    assert due(None, timestamp=0) < NOW.monotonic


def test_a_far_deadline_is_the_maximum() -> None:
    assert due(2**62) == 110.0


def test_a_producer_whose_clock_is_ahead_gets_the_maximum_from_now() -> None:
    assert due(None, timestamp=9_000_000) == 110.0
    assert due(9_010_000, timestamp=9_000_000) == 110.0


def test_a_budget_is_shared_and_never_negative() -> None:
    budget = Deadline(2.0, now=10.0)
    assert budget.left(11.5) == pytest.approx(0.5)
    assert budget.left(13.0) == 0.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "leave", "tightest"]), st.lists(st.floats(0, 1e6), max_size=5), st.floats(0, 1)
        ),
        max_size=300,
    )
)
def test_the_heap_always_knows_the_tightest_deadline(steps: list[tuple[str, list[float], float]]) -> None:
    live: dict[int, float] = {}
    heap = DeadlineHeap(live)
    keys = itertools.count()
    for step, deadlines, share in steps:
        if step == "add":
            come = [(deadline, next(keys)) for deadline in deadlines]
            live.update({key: deadline for deadline, key in come})
            heap.add(come)
        elif step == "leave" and live:
            del live[list(live)[int(share * (len(live) - 1))]]
            heap.trim()
        assert heap.tightest() == min([(deadline, key) for key, deadline in live.items()], default=None)


@pytest.mark.parametrize("later", [1.0, -1.0])
def test_the_heap_does_not_keep_what_has_left(later: float) -> None:
    live = {-1: 0.0}
    heap = DeadlineHeap(live)
    heap.add([(-1e9, -1)])
    for key in range(10_000):
        live[key] = 1e9 + later * key
        heap.add([(live[key], key)])
        del live[key]
        heap.trim()
    assert len(heap) < 200


def test_an_outage_runs_from_the_first_sign_of_trouble_to_a_sign_of_life() -> None:
    outage = Outage(limit=10.0)
    assert not outage.over_limit(100.0)
    outage.note(0.0)
    outage.note(9.0)
    assert not outage.over_limit(9.9)
    assert outage.over_limit(10.0)
    outage.clear()
    assert not outage.over_limit(100.0)
