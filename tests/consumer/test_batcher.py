"""When a batch closes, what goes into it, and what expires instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.batcher import Batcher
from consumer.serving.cost_model import CostModel, Prior
from consumer.serving.load_settings import LoadSettings
from consumer.serving.settings import BatchSettings
from tests.consumer.queued_item import FAR, Item, request


def batcher(engine_seconds: float = 0.0, **settings: float) -> Batcher[Item]:
    costs = CostModel(Prior(engine_seconds, known=True))
    return Batcher(BatchSettings.model_validate({"window_ms": 10.0, **settings}), LoadSettings(turn_away=False), costs)


def test_an_idle_engine_does_not_wait() -> None:
    made = batcher()
    made.add([Item()])
    batch = made.take(0.0, idle=True)
    assert batch is not None
    assert batch.reason == "idle"


def test_an_empty_batcher_has_no_batch_and_no_due_time() -> None:
    made = batcher()
    assert made.take(100.0, idle=True) is None
    assert made.due_in(100.0) is None


def test_the_window_is_anchored_at_the_first_waiting_request_not_at_the_batch_before() -> None:
    made = batcher()
    made.add([Item(admitted=0.0)])
    assert made.take(0.0, idle=True) is not None
    for count in range(5):  # ten seconds later, one millisecond apart
        made.add([Item(admitted=10.0 + count / 1000)])
        assert made.take(10.0 + count / 1000, idle=False) is None
    assert made.due_in(10.004) == pytest.approx(0.006)
    batch = made.take(10.0101, idle=False)
    assert batch is not None
    assert (len(batch.items), batch.reason) == (5, "window")


def test_the_request_count_closes_a_batch() -> None:
    made = batcher(max_requests=3)
    for _ in range(4):
        made.add([Item()])
    batch = made.take(0.0, idle=False)
    assert batch is not None
    assert (len(batch.items), batch.reason) == (3, "requests")
    assert len(made) == 1


def test_the_token_budget_closes_a_batch_and_is_not_exceeded() -> None:
    made = batcher(max_tokens=100)
    for tokens in (40, 40, 40):
        made.add([Item(tokens)])
    batch = made.take(0.0, idle=False)
    assert batch is not None
    assert (batch.tokens, batch.reason) == (80, "tokens")
    assert made.tokens == 40


def test_a_request_above_the_token_budget_runs_alone() -> None:
    made = batcher(max_tokens=100)
    made.add([Item(500)])
    made.add([Item(1)])
    batch = made.take(0.0, idle=False)
    assert batch is not None
    assert [item.tokens for item in batch.items] == [500]


def test_the_tightest_deadline_minus_the_engine_time_closes_a_batch() -> None:
    made = batcher(engine_seconds=0.5, window_ms=60_000)
    made.add([Item(deadline=FAR)])
    made.add([Item(deadline=2.0)])
    surely = 0.5 * 1.4  # a prediction that has not been tried is taken to be wrong by a fifth, twice over
    assert made.take(2.0 - surely - 0.01, idle=False) is None
    assert made.due_in(1.0) == pytest.approx(1.0 - surely)
    batch = made.take(2.0 - surely, idle=False)
    assert batch is not None
    assert (len(batch.items), batch.reason) == (2, "deadline")


def test_only_what_has_expired_is_swept_out() -> None:
    made = batcher()
    late, later, fine = Item(deadline=1.0), Item(deadline=2.0), Item()
    made.add([fine, later, late])
    assert made.next_deadline() == 1.0
    assert made.expire(0.99) == []
    assert made.expire(2.0) == [late, later]
    assert len(made) == 1
    assert made.next_deadline() == FAR


def test_removing_by_a_predicate_leaves_the_others_in_order() -> None:
    made = batcher()
    items = [Item(tokens) for tokens in (1, 2, 3, 4)]
    made.add(items)
    assert made.remove(lambda item: item.tokens % 2 == 0) == [items[1], items[3]]
    batch = made.take(0.0, idle=True)
    assert batch is not None
    assert batch.items == [items[0], items[2]]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "take", "expire", "remove"]), st.integers(1, 60), st.floats(0.0, 0.2)),
        max_size=80,
    )
)
def test_every_request_leaves_once_the_tightest_first_and_within_the_bounds(
    steps: list[tuple[str, int, float]],
) -> None:
    made = batcher(max_requests=4, max_tokens=100)
    now = 0.0
    waiting: list[Item] = []
    for step, number, delay in steps:
        now += delay
        if step == "add":
            item = Item(number, now, now + number / 100)
            waiting.append(item)
            made.add([item])
        elif step == "take":
            made.expire(now)
            waiting = [item for item in waiting if item.deadline > now]
            batch = made.take(now, idle=number % 2 == 0)
            if batch is None:
                continue
            waiting.sort(key=lambda item: item.deadline)
            assert batch.items == waiting[: len(batch.items)]
            assert len(batch.items) <= 4
            assert batch.tokens == sum(item.tokens for item in batch.items)
            assert batch.tokens <= 100
            del waiting[: len(batch.items)]
            waiting.sort(key=lambda item: item.admitted)
        elif step == "expire":
            gone = made.expire(now)
            assert set(gone) == {item for item in waiting if item.deadline <= now}
            waiting = [item for item in waiting if item.deadline > now]
        else:
            gone = made.remove(lambda item, number=number: item.tokens == number)  # type: ignore[misc]  # bound now
            assert set(gone) == {item for item in waiting if item.tokens == number}
            waiting = [item for item in waiting if item.tokens != number]
        assert len(made) == len(waiting)
        assert made.tokens == sum(item.tokens for item in waiting)
        assert made.next_deadline() == min((item.deadline for item in waiting), default=None)


@given(st.lists(st.floats(0.0, 0.05), min_size=1, max_size=60))
def test_no_request_waits_longer_than_the_window_for_a_free_engine(arrivals: list[float]) -> None:
    made = batcher(max_requests=8)
    now = 0.0
    for gap in arrivals:
        now += gap
        made.add([Item(admitted=now)])
        due = made.due_in(now)
        assert due is not None
        assert due <= 0.010 + 1e-9
        if due == 0.0:
            assert made.take(now, idle=False) is not None


@given(
    st.lists(
        st.tuples(
            st.integers(1, 120),
            st.sampled_from(("level", "vocab", "legal")),
            st.integers(1, 512),
            st.floats(1.0, 9.0),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_the_most_urgent_request_is_in_the_next_batch_however_unlike_the_others_it_is(
    asked: list[tuple[int, str, int, float, int]],
) -> None:
    made = batcher(max_requests=4, max_tokens=100)
    waiting = [
        Item(tokens, deadline=deadline, priority=priority, asked=request(width=width, score=score))
        for tokens, score, width, deadline, priority in asked
    ]
    made.add(waiting)
    while waiting:
        batch = made.take(0.0, idle=True)
        assert batch is not None
        assert min(waiting, key=lambda item: (-item.priority, item.deadline)) in batch.items
        assert {item.asked.score for item in batch.items} == {batch.mode}
        waiting = [item for item in waiting if item not in batch.items]
