"""The delivery contract: nothing is committed before the broker has confirmed what the record caused."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from consumer.stream.mock_cluster import Api
from tests.consumer.serving_harness import DEAD_LETTERS, REPLIES, Harness, harness
from tests.consumer.waiting import eventually

PERMANENT = KafkaError.INVALID_REQUIRED_ACKS
"""A produce error that the client does not retry and that no rule turns into a dead letter."""


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


@pytest.fixture
def split() -> Iterator[Harness]:
    """Broker 1 has the requests and the group, broker 2 replies and dead letters."""
    with harness(brokers=2) as each:
        each.cluster.set_group_coordinator(each.group, 1)
        each.cluster.set_leader("recall.requests", 0, 1)
        for topic, partitions in ((REPLIES, 2), (DEAD_LETTERS, 1)):
            for number in range(partitions):
                each.cluster.set_leader(topic, number, 2)
        yield each


def test_an_answered_request_is_committed_once_its_reply_is_confirmed(made: Harness) -> None:
    member = made.member()
    for number in range(10):
        made.send(f"r{number}")
    made.flush()
    made.replies.wait(10)
    eventually(lambda: made.committed() == 10)
    assert member.events.count["confirmed"] == 10
    assert eventually(lambda: member.snapshot().partitions[0].committed == 10)
    assert eventually(lambda: member.snapshot().in_flight == 0)


def test_no_offset_is_committed_before_the_reply_is_confirmed(split: Harness) -> None:
    member = split.member(commit_interval_ms=0)
    split.send("warm")
    split.flush()
    eventually(lambda: split.committed() == 1)
    split.cluster.broker_down(2)
    split.send("held")
    split.flush()
    eventually(lambda: member.events.recalled(2))
    turns = member.events.count["committed"]
    eventually(lambda: member.snapshot().in_flight == 1)
    split.send(value=b"\xc1")  # a dead letter is held back just the same
    split.flush()
    eventually(lambda: member.events.count["dead:bad_request"])
    eventually(lambda: member.snapshot().in_flight == 2)
    assert split.committed() == 1
    assert member.events.count["committed"] == turns
    split.cluster.broker_up(2)
    eventually(lambda: split.committed() == 3)
    split.replies.wait(2)
    split.dead_letters.wait(1)


def test_a_bad_record_waits_for_its_dead_letter_also_when_its_error_reply_is_confirmed(split: Harness) -> None:
    for number in range(2):
        split.cluster.set_leader(REPLIES, number, 1)
    member = split.member(commit_interval_ms=0)
    split.send("good")
    split.send(value=b"\xc1")  # opens the connection to the dead letters' broker
    split.flush()
    eventually(lambda: split.committed() == 2)
    split.cluster.broker_down(2)
    split.send("bad", top_k=5_000)
    split.flush()
    split.replies.wait(2)
    eventually(lambda: member.events.count["confirmed"] == 2)
    eventually(lambda: member.snapshot().in_flight == 1)
    assert split.committed() == 2
    split.cluster.broker_up(2)
    eventually(lambda: split.committed() == 3)


def test_stopping_while_a_dead_letter_is_unconfirmed_commits_nothing_past_it(split: Harness) -> None:
    member = split.member(commit_interval_ms=0, drain_s=0.5)
    split.send(value=b"\xc1")
    split.flush()
    eventually(lambda: split.committed() == 1)
    split.cluster.broker_down(2)
    split.send(value=b"\xc2")
    split.flush()
    eventually(lambda: member.events.count["dead:bad_request"] == 2)
    assert member.stop() == 0
    assert split.committed() == 1
    split.cluster.broker_up(2)
    split.member()
    split.dead_letters.wait(2)
    eventually(lambda: split.committed() == 2)


def test_a_reply_that_the_broker_refuses_ends_the_process_without_a_commit(made: Harness) -> None:
    member = made.member(commit_interval_ms=0)
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, PERMANENT])  # the request itself is a produce as well
    made.send("r1")
    made.flush()
    eventually(lambda: member.loop.failure)
    assert "undeliverable" in str(member.loop.failure)
    assert any("failed" in reason for reason in member.snapshot().not_ready)
    assert member.stop() == 1
    assert made.committed() == 0


def test_a_dead_letter_that_the_broker_refuses_ends_the_process_without_a_commit(made: Harness) -> None:
    member = made.member(commit_interval_ms=0)
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, PERMANENT])
    made.send(value=b"\xc1")
    made.flush()
    eventually(lambda: member.loop.failure)
    assert "dead letter" in str(member.loop.failure)
    assert member.stop() == 1
    assert made.committed() == 0


def test_a_produce_error_that_passes_is_retried_by_the_client(made: Harness) -> None:
    made.member()
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, KafkaError.NOT_ENOUGH_REPLICAS])
    made.send("r1")
    made.flush()
    assert made.replies.wait(1)[0].reply.status == "ok"
    eventually(lambda: made.committed() == 1)


def test_a_slower_request_holds_the_commit_back_while_later_ones_are_answered(made: Harness) -> None:
    """Replies leave when ready, offsets wait for the first unfinished record."""
    member = made.member(commit_interval_ms=0, max_requests=1)
    member.engine.gate.clear()
    made.send("slow")
    made.send(value=b"\xc1")
    made.flush()
    made.dead_letters.wait(1)
    eventually(lambda: member.snapshot().in_flight == 1)
    assert made.committed() == 0
    member.engine.gate.set()
    eventually(lambda: made.committed() == 2)


def test_a_reply_above_the_clients_limit_becomes_too_large(made: Harness) -> None:
    member = made.member(kafka=made.kafka(max_message_bytes=3_000, batch_bytes=2_500))
    made.send("big", top_k=900)
    made.send("small")
    made.flush()
    replies = {received.reply.request_id: received.reply for received in made.replies.wait(2)}
    assert replies["big"].error is not None
    assert replies["big"].error.code == "too_large"
    assert replies["small"].status == "ok"
    eventually(lambda: made.committed() == 2)
    assert member.loop.failure is None
    assert made.dead_letters.poll() == []
    assert (member.events.count["replied:ok"], member.events.count["replied:error"]) == (1, 1), "each counts once"


def test_a_reply_refused_for_its_batchs_size_is_sent_again_before_it_is_given_up(made: Harness) -> None:
    made.member()
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, KafkaError.MSG_SIZE_TOO_LARGE])
    made.send("r1")
    made.flush()
    assert made.replies.wait(1)[0].reply.status == "ok"
    eventually(lambda: made.committed() == 1)


def test_a_reply_refused_again_and_again_for_its_size_ends_as_a_dead_letter(
    made: Harness,
) -> None:
    made.member()
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, *[KafkaError.MSG_SIZE_TOO_LARGE] * 3])
    made.send("r1")
    made.flush()
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"reply_too_large"
    eventually(lambda: made.committed() == 1)
    assert made.replies.poll() == []


def test_a_dead_letter_above_the_topics_limit_is_cut(made: Harness) -> None:
    made.member()
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, *[KafkaError.MSG_SIZE_TOO_LARGE] * 2])
    made.send(value=b"\xc1" * 700_000)
    made.flush()
    (letter,) = made.dead_letters.wait(1)
    assert letter.headers["dlq.truncated"] == b"true"
    assert letter.value is not None
    assert 400_000 < len(letter.value) < 500_000
    eventually(lambda: made.committed() == 1)


def test_a_dead_letter_that_stood_beside_one_too_large_is_not_cut(made: Harness) -> None:
    made.member()
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, KafkaError.MSG_SIZE_TOO_LARGE])
    made.send(value=b"\xc1" * 700_000)
    made.flush()
    (letter,) = made.dead_letters.wait(1)
    assert letter.value == b"\xc1" * 700_000


def test_a_reply_that_its_topic_does_not_take_is_a_dead_letter(made: Harness) -> None:
    made.member()
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, *[KafkaError.INVALID_RECORD] * 2])
    made.send("r1")
    made.flush()
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"reply_refused"
    made.send("r2")
    made.flush()
    assert made.replies.wait(1)[0].reply.request_id == "r2"
    eventually(lambda: made.committed() == 2)


def test_of_a_refused_batch_every_reply_is_sent_alone_and_only_the_culprit_is_refused(made: Harness) -> None:
    member = made.member(kafka=made.kafka(producer_options={"linger.ms": 100}))
    member.engine.gate.clear()
    for number in range(8):
        made.send(f"r{number}", key=b"k")
    made.flush()
    eventually(lambda: member.snapshot().in_flight == 8)
    # The batch is refused, then the first of the eight alone: it is told so, the others pass.
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.MSG_SIZE_TOO_LARGE] * 2)
    member.engine.gate.set()
    replies = [received.reply for received in made.replies.wait(8)]
    assert [reply.request_id for reply in replies if reply.status != "ok"] == ["r0"]
    eventually(lambda: made.committed() == 8)


def test_the_reply_goes_to_the_topic_and_partition_that_were_asked_for(made: Harness) -> None:
    made.member()
    made.send("r1", key=b"k", headers={"kafka_replyPartition": b"\0\0\0\1"})
    made.send("r0", key=b"k", headers={"reply-partition": b"0"})
    made.flush()
    places = {received.reply.request_id: received.partition for received in made.replies.wait(2)}
    assert places == {"r1": 1, "r0": 0}


def test_a_reply_topic_that_does_not_exist_is_a_dead_letter(made: Harness) -> None:
    kafka = made.kafka(
        reply_topics_allowed=("others.*",),
        producer_options={"topic.metadata.propagation.max.ms": 100},
    )
    made.member(kafka=kafka)
    made.send("r1", headers={"reply-topic": b"others.missing"})
    made.send("r2")
    made.flush()
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"reply_topic_unknown"
    assert made.replies.wait(1)[0].reply.request_id == "r2"
    eventually(lambda: made.committed() == 2)


def test_a_reply_that_waits_for_its_topic_holds_up_no_other_that_is_sent_again(made: Harness) -> None:
    kafka = made.kafka(
        reply_topics_allowed=("others.*",), producer_options={"topic.metadata.propagation.max.ms": 600_000}
    )
    member = made.member(kafka=kafka, drain_s=0.2)
    made.send("r1", headers={"reply-topic": b"others.missing"})
    made.flush()
    eventually(lambda: member.events.recalled(1))
    made.cluster.push_errors(Api.PRODUCE, [KafkaError.NO_ERROR, KafkaError.MSG_SIZE_TOO_LARGE])
    made.send("r2")
    made.flush()
    assert made.replies.wait(1)[0].reply.status == "ok"
    assert made.committed() < 1


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_reply_partition_that_does_not_exist_is_a_dead_letter(made: Harness, warm: bool) -> None:
    made.member()
    if warm:  # the client knows the topic: it raises instead of reporting
        made.send("warm")
        made.flush()
        made.replies.wait(1)
    made.send("r1", headers={"reply-partition": b"77"})
    made.flush()
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"reply_partition_unknown"
    eventually(lambda: made.committed() == 1 + warm)


def test_a_bad_record_whose_error_reply_has_nowhere_to_go_is_one_dead_letter(made: Harness) -> None:
    made.member()
    made.send("r1", top_k=5_000, headers={"reply-partition": b"77"})
    made.flush()
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"bad_request"
    eventually(lambda: made.committed() == 1)
    assert len(made.dead_letters.poll()) == 1


def test_a_full_producer_queue_makes_replies_wait_not_fail(made: Harness) -> None:
    member = made.member(kafka=made.kafka(producer_options={"queue.buffering.max.messages": 2}))
    for number in range(50):
        made.send(f"r{number}")
    made.flush()
    made.replies.wait(50)
    eventually(lambda: made.committed() == 50)
    assert member.loop.failure is None
