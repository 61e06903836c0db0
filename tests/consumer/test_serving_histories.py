"""Events, and requests from the histories that they make, through the loop on the embedded broker."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from catalog_sync.embedded import EmbeddedRedis
from consumer.histories.settings import HistorySettings
from consumer.wire.outgoing import encode_cancel, encode_event, encode_forget, encode_request
from consumer.wire.reply import RecallReply
from tests.consumer.fake_engine import FakeEngine
from tests.consumer.serving_harness import Harness, Member, harness
from tests.consumer.waiting import eventually


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as each:
        yield each


@pytest.fixture
def store(server: EmbeddedRedis) -> Iterator[EmbeddedRedis]:
    yield server
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


def settings(store: EmbeddedRedis, mode: str = "write-through", **more: Any) -> HistorySettings:
    return HistorySettings.model_validate({"store": mode, "url": store.url, "lookup_ms": 20_000, **more})


def ask(made: Harness, request_id: str, **options: Any) -> None:
    """A request that brings no history."""
    made.send(value=encode_request(request_id, {"user_id": "u", **options}))  # type: ignore[typeddict-item]


def event(made: Harness, *items: int) -> None:
    made.send(value=encode_event("u", items))


def replies(made: Harness, count: int) -> dict[str | None, RecallReply]:
    made.flush()
    return {each.reply.request_id: each.reply for each in made.replies.wait(count)}


def stored(store: EmbeddedRedis) -> list[dict[bytes, bytes]]:
    with redis.Redis.from_url(store.url) as client:
        return [client.hgetall(key) for key in client.keys("*:history:*")]


def end(member: Member) -> None:
    assert member.stop() == 0


def test_a_request_is_answered_from_the_events_before_it_and_those_are_committed_without_a_reply(made: Harness) -> None:
    member = made.member()
    ask(made, "none")
    event(made, 1, 2)
    event(made, 3)
    ask(made, "held")
    ask(made, "appended", append=[4])
    made.send("whole", user_id="u", history=[9])
    ask(made, "after")
    got = replies(made, 5)
    assert got["none"].error is not None
    assert (got["none"].status, got["none"].error.code) == ("error", "need_history")
    assert member.engine.histories == [[1, 2, 3], [1, 2, 3, 4], [9], [9]]
    eventually(lambda: made.committed() == 7)
    assert made.dead_letters.poll() == []
    assert member.snapshot().histories.users == 1


def test_an_expired_request_still_appends(made: Harness) -> None:
    member = made.member()
    event(made, 1)
    ask(made, "late", append=[2], deadline_ms=1)
    ask(made, "held")
    assert replies(made, 2)["late"].status == "expired"
    assert member.engine.histories == [[1, 2]]


def test_a_bad_event_is_a_dead_letter_and_nobody_is_answered(made: Harness) -> None:
    member = made.member()
    made.send(value=b'{"type": "event", "user_id": "u", "items": "no"}')
    made.send(value=b'{"type": "cancel", "user_id": "u", "request_id": ""}')
    event(made, 1)
    made.send(value=b'{"type": "event", "user_id": "u", "items": ["other", "ids"]}')
    ask(made, "held")
    replies(made, 1)
    assert [each.headers["dlq.error.class"] for each in made.dead_letters.wait(3)] == [b"bad_request"] * 3
    assert member.engine.histories == [[1]]
    eventually(lambda: made.committed() == 5)


def test_ids_that_the_catalog_cannot_use_take_the_place_of_nothing(made: Harness) -> None:
    member = made.member(FakeEngine(kind=int))
    made.send(value=b'{"type": "event", "user_id": "u", "items": ["other", "ids"]}')
    event(made, 1)
    made.send("wrong", user_id="u", history=["other", "ids"])
    ask(made, "wrong, late", history=["other"], deadline_ms=1)
    event(made, 2)
    ask(made, "held")
    got = replies(made, 3)
    assert [got[name].error.code for name in ("wrong", "wrong, late")] == ["bad_request"] * 2  # type: ignore[union-attr]
    assert member.engine.histories == [[1, 2]]
    assert len(made.dead_letters.wait(3)) == 3, "what came after them is none"
    eventually(lambda: made.committed() == 6)


def test_a_request_that_is_cancelled_before_it_starts_is_answered_cancelled(made: Harness) -> None:
    member = made.member(max_requests=1)
    member.engine.gate.clear()
    made.send("first", user_id="u")
    made.send("second", user_id="u")
    made.send("unwanted", user_id="u")
    made.flush()
    eventually(lambda: member.snapshot().in_flight == 3)
    made.send(value=encode_cancel("somebody else", "unwanted"))
    made.send(value=encode_cancel("u", "unwanted"))
    made.flush()
    (reply,) = made.replies.wait(1)
    assert reply.reply.error is not None
    assert (reply.reply.request_id, reply.reply.status, reply.reply.error.code) == ("unwanted", "expired", "cancelled")
    member.engine.gate.set()
    replies(made, 3)
    eventually(lambda: made.committed() == 5)


@pytest.mark.parametrize("mode", ["write-behind", "write-through"])
def test_a_history_outlives_the_process_that_made_it(made: Harness, store: EmbeddedRedis, mode: str) -> None:
    member = made.member(histories=settings(store, mode, write_behind_ms=60_000))
    event(made, 1, 2)
    ask(made, "before", append=[3])
    replies(made, 1)
    end(member)
    assert made.committed() == 2
    later = made.member(histories=settings(store, mode))
    ask(made, "after")
    replies(made, 2)
    assert later.engine.histories == [[1, 2, 3]]
    assert later.snapshot().histories.counts.misses == 1


def test_events_that_come_again_after_a_restart_are_applied_once(made: Harness, store: EmbeddedRedis) -> None:
    member = made.member(histories=settings(store), commit_interval_ms=3_600_000)
    for item in range(5):
        event(made, item)
    ask(made, "before", append=[5])
    replies(made, 1)
    eventually(lambda: member.snapshot().histories.unsaved == 0)
    member.loop._fail("killed")
    assert member.stop() == 1
    later = made.member(histories=settings(store))
    ask(made, "after")
    made.flush()
    eventually(lambda: len(made.replies.poll()) >= 3)
    assert later.engine.histories[-1] == [0, 1, 2, 3, 4, 5]
    assert later.snapshot().histories.counts.duplicates == 6


def test_the_same_append_sent_twice_under_one_correlation_id_is_two_requests(made: Harness) -> None:
    member = made.member(active_catalog=lambda: "v1")
    event(made, 1)
    for _ in range(2):
        made.send(value=encode_request("r", {"user_id": "u", "append": [2]}), headers={"correlation-id": b"the same"})
        made.flush()
    made.replies.wait(2)
    assert member.engine.histories == [[1, 2], [1, 2, 2]]


def test_a_forgotten_user_is_gone_from_the_process_from_redis_and_from_the_engine(
    made: Harness, store: EmbeddedRedis
) -> None:
    member = made.member(histories=settings(store), active_catalog=lambda: "v1", commit_interval_ms=3_600_000)
    event(made, 1, 2)
    ask(made, "before")
    replies(made, 1)
    eventually(lambda: [fields for fields in stored(store) if len(fields[b"0"]) == 16])
    made.send(value=encode_forget("u"))
    made.send(value=encode_forget("u"))
    ask(made, "after")
    got = replies(made, 2)["after"]
    assert got.error is not None
    assert got.error.code == "need_history"
    eventually(lambda: member.engine.forgotten == ["u", "u"])
    eventually(lambda: member.snapshot().histories.unsaved == 0)
    assert [fields[b"0"] for fields in stored(store)] == [b""], "nothing but the mark"
    member.loop._fail("killed")
    member.stop()
    later = made.member(histories=settings(store))
    eventually(lambda: made.committed() == 5 or later.snapshot().histories.counts.duplicates >= 3)
    eventually(lambda: [fields[b"0"] for fields in stored(store)] == [b""])
    assert later.engine.histories == []


def test_a_reply_under_way_when_its_user_is_forgotten_is_not_kept_for_repeats(made: Harness) -> None:
    member = made.member(active_catalog=lambda: "v1")
    member.engine.gate.clear()
    whole = encode_request("r", {"user_id": "u", "history": [1, 2]})
    made.send(value=whole, headers={"correlation-id": b"the same"})
    made.flush()
    eventually(member.engine.busy.is_set)
    made.send(value=encode_forget("u"))
    made.flush()
    eventually(lambda: member.snapshot().histories.counts.forgotten)
    member.engine.gate.set()
    made.replies.wait(1)
    made.send(value=whole, headers={"correlation-id": b"the same"})
    made.flush()
    made.replies.wait(2)
    assert member.engine.histories == [[1, 2], [1, 2]], "it was recalled anew"


def test_without_redis_write_through_commits_nothing_and_a_request_is_told_soon(
    made: Harness, store: EmbeddedRedis
) -> None:
    with EmbeddedRedis() as own:
        member = made.member(histories=settings(own, lookup_ms=50.0, timeout_s=0.2), drain_s=0.3)
        event(made, 1)
        made.flush()
        eventually(lambda: made.committed() == 1)
        own.stop()
        event(made, 2)
        made.send(value=encode_request("other", {"user_id": "v"}))
        made.send("whole", user_id="w")
        got = replies(made, 1)["other"]
        assert got.error is not None
        assert got.error.code == "need_history"
        eventually(lambda: member.snapshot().histories.trouble)
        assert made.committed() == 1
        assert member.stop() == 0
        assert made.committed() == 1, "they come again"


def test_write_behind_goes_on_without_redis(made: Harness) -> None:
    own = EmbeddedRedis()
    own.start()
    member = made.member(histories=settings(own, "write-behind", timeout_s=0.2), drain_s=0.5)
    own.stop()
    event(made, 1)
    made.send("whole", user_id="w")
    replies(made, 1)
    eventually(lambda: made.committed() == 2)
    histories = member.snapshot().histories
    assert histories.at_risk == 2
    assert histories.errors > 0


def test_write_behind_loses_no_more_records_than_it_says_when_the_process_is_killed(
    made: Harness, store: EmbeddedRedis
) -> None:
    member = made.member(histories=settings(store, "write-behind", write_behind_ms=3_600_000, unsaved_records=5))
    for item in range(23):
        event(made, item)
    made.flush()
    eventually(lambda: made.committed() >= 15)
    at_risk = member.snapshot().histories.at_risk
    assert at_risk <= 5
    member.loop._fail("killed")
    member.stop()
    later = made.member(histories=settings(store, "write-behind"))
    ask(made, "after")
    replies(made, 1)
    (held,) = later.engine.histories
    assert len(held) >= 23 - 5
    assert held == sorted(set(held)), "in order, none twice"


def test_exactly_once_commits_events_with_the_replies(made: Harness, store: EmbeddedRedis) -> None:
    member = made.member(
        histories=settings(store), kafka=made.kafka(delivery="exactly-once", transaction_timeout_ms=5_000)
    )
    event(made, 1)
    ask(made, "held", append=[2])
    event(made, 3)
    replies(made, 1)
    eventually(lambda: [each.committed for each in member.snapshot().partitions] == [3])  # the mock keeps them apart
    assert member.engine.histories == [[1, 2]]
