"""The delivery contract on a real broker: round trips, commits, dead letters, sizes, topics."""

import asyncio

import numpy as np
import pytest
from confluent_kafka import Producer

from consumer.client import RecallClient
from consumer.wire.outgoing import encode_request
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.waiting import eventually
from tests.kafka.commit_log import decreases
from tests.kafka.real_harness import RealHarness, real_harness

pytestmark = pytest.mark.kafka

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_client_gets_its_reply_and_the_offset_is_committed(made: RealHarness) -> None:
    made.member()

    async def ask() -> list[object]:
        async with RecallClient(made.kafka()) as client:
            reply = await client.recall(user_id="u", history=[7], top_k=3, timeout=20)
            return list(np.asarray(reply.items).tolist())

    assert asyncio.run(ask()) == [8, 9, 10]
    eventually(lambda: made.committed() == 1)


def test_an_idle_service_answers_one_request_at_once(made: RealHarness) -> None:
    """Nothing in the client waits for a batch to fill."""
    member = made.member()
    made.send("warm")
    made.flush()
    made.replies.wait(1)
    made.send("alone")
    made.flush()
    reply = made.replies.wait(2)[1].reply
    assert reply.timing_ms is not None
    assert reply.timing_ms["total"] < 250
    assert member.engine.batches == [1, 1]


def test_commits_only_grow_and_end_behind_the_last_answer(made: RealHarness) -> None:
    member = made.member(commit_interval_ms=0, max_requests=4)
    for number in range(300):
        made.send(f"r{number}", key=b"%d" % number)
    made.flush()
    made.replies.wait(300)
    eventually(lambda: made.committed() == 300)
    assert member.stop() == 0
    commits = made.commits()
    assert commits[-1].offset == 300
    assert decreases(commits) == []


def test_a_reply_names_its_request_and_echoes_the_correlation_id(made: RealHarness) -> None:
    made.member()
    made.send("r1", headers={"kafka_correlationId": b"\x00\xff\xfe", "traceparent": TRACE})
    made.flush()
    (reply,) = made.replies.wait(1)
    assert reply.headers["kafka_correlationId"] == b"\x00\xff\xfe"
    assert reply.headers["traceparent"] == TRACE
    place = [reply.headers[f"request-{part}"] for part in ("topic", "partition", "offset")]
    assert place == [made.requests.encode(), b"0", b"0"]


def test_a_poisoned_record_becomes_a_dead_letter_and_its_neighbours_are_answered(made: RealHarness) -> None:
    made.member()
    made.send("before")
    made.send(value=b"\xc1\xff", headers={"mine": b"\xfe"})
    made.send("after")
    made.flush()
    assert {reply.reply.request_id for reply in made.replies.wait(2)} == {"before", "after"}
    (letter,) = made.dead_letters.wait(1)
    assert (letter.value, letter.headers["mine"]) == (b"\xc1\xff", b"\xfe")
    assert letter.headers["dlq.original.offset"] == b"1"
    eventually(lambda: made.committed() == 3)


def test_a_poisoned_record_of_the_greatest_size_lands_cut_and_does_not_loop(made: RealHarness) -> None:
    made.member()
    made.send(value=b"\xc1" * 999_900)
    made.flush()
    (letter,) = made.dead_letters.wait(1)
    assert letter.headers["dlq.truncated"] == b"true"
    assert letter.value is not None
    assert 900_000 < len(letter.value) < 999_900
    eventually(lambda: made.committed() == 1)


def test_without_a_dead_letter_topic_the_process_ends_and_commits_nothing(made: RealHarness) -> None:
    member = made.member(kafka=made.kafka(dead_letter_topic="nowhere"), commit_interval_ms=0)
    made.send(value=b"\xc1")
    made.flush()
    assert "dead letter" in eventually(lambda: member.loop.failure)
    assert member.snapshot().not_ready
    assert member.stop() == 1
    assert made.committed() in (0, -1001)


def test_a_missing_reply_topic_is_a_dead_letter(made: RealHarness) -> None:
    made.member(kafka=made.kafka(reply_topics_allowed=("missing.*",)))
    made.send("r1", headers={"reply-topic": b"missing.topic"})
    made.send("r2")
    made.flush()
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"reply_topic_unknown"
    assert made.replies.wait(1)[0].reply.request_id == "r2"
    eventually(lambda: made.committed() == 2)


@pytest.mark.parametrize("batch_bytes", [9_000, 900_000], ids=["batches fit the topic", "batches do not fit"])
def test_a_reply_above_the_topics_limit_harms_none_beside_it(broker: KafkaCluster, batch_bytes: int) -> None:
    """Brokers refuse whole record batches: the small replies in one with the large one are sent again."""
    with real_harness(broker, config={"max.message.bytes": "10000"}) as made:
        member = made.member(kafka=made.kafka(batch_bytes=batch_bytes), max_requests=32)
        member.engine.gate.clear()
        for number in range(20):
            made.send(f"small-{number}", key=b"one partition")
        made.send("large", key=b"one partition", top_k=900, history=list(range(2**40, 2**40 + 5)))
        made.flush()
        eventually(lambda: member.snapshot().in_flight == 21)
        member.engine.gate.set()
        replies = {received.reply.request_id: received.reply for received in made.replies.wait(21)}
        large = replies.pop("large")
        assert large.error is not None
        assert large.error.code == "too_large"
        assert {reply.status for reply in replies.values()} == {"ok"}
        eventually(lambda: made.committed() == 21)
        assert member.loop.failure is None
        assert made.dead_letters.poll() == []


def test_requests_in_transactions_leave_no_lag_whether_they_are_committed_or_aborted(made: RealHarness) -> None:
    member = made.member()
    client = Producer({"bootstrap.servers": made.bootstrap_servers, "transactional.id": made.group})
    client.init_transactions(20)

    def begin(*request_ids: str) -> None:
        client.begin_transaction()
        for request_id in request_ids:
            client.produce(made.requests, encode_request(request_id, {"history": [1]}), key=b"u")
        assert client.flush(20) == 0

    def lag() -> int | None:
        return member.snapshot().partitions[0].lag

    begin("answered")
    client.commit_transaction(20)
    made.replies.wait(1)
    eventually(lambda: made.committed() == 1 and lag() == 0)
    made.send("between")
    made.flush()
    made.replies.wait(2)
    begin("aborted-1", "aborted-2")
    client.abort_transaction(20)
    assert [each.reply.request_id for each in made.replies.wait(2)] == ["answered", "between"]
    eventually(lambda: member.snapshot().partitions[0].high == made.end_of(made.requests) == 6)
    eventually(lambda: lag() == 0)


@pytest.mark.parametrize(("policy", "answered", "skipped"), [("earliest", 3, 3), ("latest", 0, 6)])
def test_records_deleted_past_the_commit_are_skipped_as_configured_and_counted(
    made: RealHarness, policy: str, answered: int, skipped: int
) -> None:
    first = made.member()
    for number in range(2):
        made.send(f"before-{number}")
    made.flush()
    made.replies.wait(2)
    eventually(lambda: made.committed() == 2)
    assert first.stop() == 0
    for number in range(6):
        made.send(f"r{number}")
    made.flush()
    made.delete_records(before=5)
    member = made.member(kafka=made.kafka(offset_reset=policy))
    eventually(lambda: member.events.count["reset"] == 1)
    made.replies.wait(2 + answered)
    made.send("next")
    made.flush()
    made.replies.wait(3 + answered)
    eventually(lambda: made.committed() == 9)
    assert member.events.count["skipped"] == skipped
