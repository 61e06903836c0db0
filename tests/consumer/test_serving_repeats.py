"""Requests that come again: answered from what was kept, never with another request's or another catalog's reply."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from consumer.serving.repeats import KeptReply, RepeatCache, identity_of
from consumer.serving.settings import BatchSettings
from consumer.stream.mock_cluster import Api
from consumer.wire.dead_letter import SourceRecord
from consumer.wire.headers import RequestHeaders
from consumer.wire.outgoing import encode_request
from engine.errors import RequestError
from tests.consumer.fake_engine import FakeEngine
from tests.consumer.serving_harness import Harness, Member, harness, now_ms
from tests.consumer.waiting import eventually

AGE = 100.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Active:
    def __init__(self, version: str | None = "v1") -> None:
        self.version = version

    def __call__(self) -> str | None:
        return self.version


def cache(active: Active | None = None, clock: Callable[[], float] | None = None, **bounds: Any) -> RepeatCache:
    settings = BatchSettings(**{"repeat_entries": 3, "repeat_bytes": 100, "repeat_age_s": AGE, **bounds})
    return RepeatCache(settings, active or Active(), clock or Clock())


def value_of(found: object) -> bytes | None:
    return getattr(found, "value", None)


def test_a_reply_that_was_under_way_when_its_user_was_forgotten_is_not_kept() -> None:
    kept = cache(clock=lambda: 5.0)
    kept.forget("u")
    read = {b"a": ("u", 4.0), b"b": ("other", 4.0), b"c": ("u", 6.0)}
    kept.put_all([(name, KeptReply(b"reply", "v1", 7.0, user, admitted)) for name, (user, admitted) in read.items()])
    assert [value_of(kept.get(name, None)) for name in read] == [None, b"reply", b"reply"]


def test_what_is_kept_of_a_user_goes_when_that_one_is_forgotten_and_nothing_else() -> None:
    kept = RepeatCache(BatchSettings(repeat_entries=3), lambda: "v1", lambda: 0.0)
    for name, user in ((b"a", "u"), (b"b", "w"), (b"c", "u"), (b"d", "u")):  # the first one has to leave
        kept.put(name, b"reply", "v1", user)
    kept.forget("u")
    assert [kept.get(name, None) is not None for name in (b"a", b"b", b"c", b"d")] == [False, True, False, False]
    assert (len(kept), kept.size) == (1, 5)


def test_a_reply_is_found_until_it_is_too_old() -> None:
    clock = Clock()
    kept = cache(clock=clock)
    kept.put(b"a", b"reply", "v1")
    clock.now = AGE
    assert value_of(kept.get(b"a", None)) == b"reply"
    clock.now = AGE + 1
    assert kept.get(b"a", None) is None
    assert (len(kept), kept.size) == (0, 0)


def test_a_swap_hides_replies_of_other_versions_and_a_rollback_shows_them_again() -> None:
    active = Active()
    kept = cache(active)
    kept.put(b"a", b"of v1", "v1")
    active.version = "v2"
    assert kept.get(b"a", None) is None
    assert value_of(kept.get(b"a", "v1")) == b"of v1", "the request itself asks for v1"
    assert kept.get(b"a", "v2") is None
    active.version = "v1"
    assert value_of(kept.get(b"a", None)) == b"of v1"
    active.version = None
    assert kept.get(b"a", None) is None


def test_the_least_recently_used_goes_first() -> None:
    kept = cache()
    for name in (b"a", b"b", b"c"):
        kept.put(name, b"x", "v1")
    kept.get(b"a", None)
    kept.put(b"d", b"x", "v1")
    assert [bool(kept.get(name, None)) for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


def test_a_reply_above_all_bytes_is_not_kept() -> None:
    kept = cache()
    kept.put(b"a", b"x" * 101, "v1")
    assert (len(kept), kept.size) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.floats(0, 40), st.booleans()), max_size=80))
def test_the_bounds_hold_and_what_is_found_is_what_was_put(steps: list[tuple[int, int, float, bool]]) -> None:
    clock = Clock()
    kept = cache(clock=clock)
    put: dict[bytes, tuple[bytes, float]] = {}
    for name, size, pause, write in steps:
        clock.now += pause
        key = b"%d" % name
        if write:
            put[key] = b"%d:" % len(put) + b"x" * size, clock.now
            kept.put(key, put[key][0], "v1")
        elif found := kept.get(key, None):
            value, at = put[key]
            assert found.value == value
            assert clock.now - at <= AGE
        assert len(kept) <= 3
        assert kept.size <= 100


def record(**changes: Any) -> SourceRecord:
    return replace(SourceRecord("t", 0, 7, 1, b"k", b"v"), **changes)


def test_identity_holds_the_place_or_the_correlation_id_and_all_that_the_reply_depends_on() -> None:
    named, nameless = RequestHeaders(correlation_id=b"c"), RequestHeaders()
    moved = record(partition=1, offset=9, timestamp_ms=5)
    assert identity_of(record(), named) == identity_of(moved, named)
    assert identity_of(record(), nameless) == identity_of(record(timestamp_ms=5), nameless)
    for other in (record(offset=8), record(partition=1)):
        assert identity_of(record(), nameless) != identity_of(other, nameless)
    for headers in (named, nameless):
        for other in (record(key=b"l"), record(value=b"w"), record(topic="u"), record(key=b"kv", value=b"")):
            assert identity_of(record(), headers) != identity_of(other, headers)
    identities = {
        identity_of(record(), headers)
        for headers in (
            nameless,
            RequestHeaders(correlation_id=b"0:7"),
            RequestHeaders(correlation_id=b""),
            named,
            RequestHeaders(correlation_id=b"c", reply_topic="r"),
            RequestHeaders(correlation_id=b"c", reply_partition=0),
        )
    }
    assert len(identities) == 6


# --- in the running loop ----------------------------------------------------------------------------------------------


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def committed(made: Harness, offset: int) -> None:
    eventually(lambda: made.committed() == offset)


def again(made: Harness, member: Member) -> None:
    """Take the member's partition away and give it back: what was not committed is read again."""
    before = member.events.count["assigned"]
    made.cluster.push_errors(Api.HEARTBEAT, [KafkaError.UNKNOWN_MEMBER_ID])
    eventually(lambda: member.events.count["lost"], 40)
    eventually(lambda: member.events.count["assigned"] == before + 1, 40)


def test_records_that_are_delivered_again_are_answered_without_the_engine(made: Harness) -> None:
    member = made.member(active_catalog=Active(), commit_interval_ms=60_000)
    for number in range(5):
        made.send(f"r{number}", history=[number])
    made.flush()
    first = [(r.value, r.key, r.headers) for r in made.replies.wait(5)]
    eventually(lambda: member.snapshot().in_flight == 0)
    batches = list(member.engine.batches)
    again(made, member)
    both = sorted((r.value, r.key, sorted(r.headers.items())) for r in made.replies.wait(10))
    assert both == sorted((v, k, sorted(h.items())) for v, k, h in first * 2)
    assert member.engine.batches == batches
    assert member.events.count["repeated"] == 5
    eventually(lambda: member.snapshot().in_flight == 0)
    assert member.stop() == 0
    assert made.committed() == 5


def test_a_request_that_its_client_sends_twice_is_answered_twice_from_one_run(made: Harness) -> None:
    member = made.member(active_catalog=Active())
    made.send("r", headers={"correlation-id": b"c"})
    made.flush()
    made.replies.wait(1)
    eventually(lambda: made.committed() == 1)
    made.send("r", headers={"correlation-id": b"c", "traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"})
    made.flush()
    first, second = made.replies.wait(2)
    assert second.value == first.value
    assert (first.headers["request-offset"], second.headers["request-offset"]) == (b"0", b"1")
    assert second.headers["correlation-id"] == b"c"
    assert second.headers["catalog"] == b"v1"
    assert b"a" * 32 in second.headers["traceparent"]
    assert member.engine.batches == [1]
    eventually(lambda: made.committed() == 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"headers": {"correlation-id": b"c"}}, {"headers": {"correlation-id": b"d"}}),
        ({"headers": {"correlation-id": b"c"}}, {"headers": {"correlation-id": b"c"}, "history": [9]}),
        ({"headers": {"correlation-id": b"c"}}, {"headers": {"correlation-id": b"c"}, "key": b"other"}),
        ({}, {}),
    ],
    ids=["another id", "another history", "another key", "no id"],
)
def test_what_only_looks_alike_is_served_by_the_engine(
    made: Harness, first: dict[str, Any], second: dict[str, Any]
) -> None:
    member = made.member(active_catalog=Active())
    for number, options in enumerate((first, second), 1):
        made.send("r", **options)
        made.flush()
        made.replies.wait(number)
        committed(made, number)
    assert member.events.count["repeated"] == 0
    assert member.engine.batches == [1, 1]


def test_after_a_swap_a_repeat_is_served_from_the_new_catalog(made: Harness) -> None:
    active = Active("v1")
    member = made.member(active_catalog=active)
    for number, (version, batches) in enumerate((("v1", 1), ("v2", 2), ("v1", 2)), 1):
        active.version = version
        made.send("r", headers={"correlation-id": b"c"})
        made.flush()
        made.replies.wait(number)
        committed(made, number)
        assert len(member.engine.batches) == batches
    assert member.events.count["repeated"] == 1


@pytest.mark.parametrize("version", ["v1", None])
def test_only_answers_with_items_are_kept(made: Harness, version: str | None) -> None:
    """What was refused for now may pass the next time."""
    refusals = [RequestError("overloaded", "no pages")]
    engine = FakeEngine(reject=lambda _: refusals.pop() if refusals else None)
    made.member(engine, active_catalog=Active(version))
    statuses = []
    for number in range(1, 3):
        made.send("r", headers={"correlation-id": b"c"})
        made.flush()
        statuses.append(made.replies.wait(number)[-1].reply.status)
        committed(made, number)
    assert statuses == ["rejected", "ok"]


def test_a_repeat_after_its_deadline_is_expired(made: Harness) -> None:
    member = made.member(active_catalog=Active())
    due = now_ms() + 1_500
    value = encode_request("r", {"history": [1], "deadline_ms": due})
    made.send(value=value, headers={"correlation-id": b"c"})
    made.flush()
    assert made.replies.wait(1)[0].reply.status == "ok"
    eventually(lambda: now_ms() > due, 5)
    made.send(value=value, headers={"correlation-id": b"c"})
    made.flush()
    assert made.replies.wait(2)[1].reply.status == "expired"
    assert member.events.count["repeated"] == 0


def test_nothing_is_kept_when_it_is_turned_off(made: Harness) -> None:
    member = made.member(active_catalog=Active(), repeat_entries=0)
    for number in range(1, 3):
        made.send("r", headers={"correlation-id": b"c"})
        made.flush()
        made.replies.wait(number)
        committed(made, number)
    assert member.engine.batches == [1, 1]
