"""Exactly-once delivery on the embedded broker with errors injected into every step of a transaction.

The embedded broker shows aborted records to everybody: that readers see each answer once is tests/kafka's to prove.
"""

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from consumer.stream.mock_cluster import Api
from consumer.stream.settings import KafkaSettings
from consumer.stream.transactions import TransactionalProducer
from tests.consumer.serving_harness import REPLIES, Harness, Member, harness
from tests.consumer.waiting import eventually


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def exactly(made: Harness, **changes: object) -> KafkaSettings:
    return made.kafka(delivery="exactly-once", **changes)


def committed(member: Member) -> int:
    """As the process knows it: the embedded broker does not keep the offsets of transactions."""
    return max((each.committed or 0 for each in member.snapshot().partitions), default=0)


def ask(made: Harness, count: int) -> None:
    for number in range(count):
        made.send(f"r{number}")
    made.flush()


def test_offsets_are_committed_with_the_replies(made: Harness) -> None:
    member = made.member(kafka=exactly(made))
    ask(made, 20)
    made.replies.wait(20)
    eventually(lambda: committed(member) == 20)
    assert eventually(lambda: member.snapshot().in_flight == 0)
    assert member.events.count["confirmed"] == 20
    assert member.stop() == 0


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (Api.INIT_PRODUCER_ID, KafkaError.COORDINATOR_NOT_AVAILABLE),
        (Api.ADD_PARTITIONS_TO_TXN, KafkaError.CONCURRENT_TRANSACTIONS),
        (Api.ADD_PARTITIONS_TO_TXN, KafkaError.NOT_COORDINATOR),
        (Api.ADD_OFFSETS_TO_TXN, KafkaError.CONCURRENT_TRANSACTIONS),
        (Api.ADD_OFFSETS_TO_TXN, KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        (Api.END_TXN, KafkaError.COORDINATOR_NOT_AVAILABLE),
        (Api.END_TXN, KafkaError.NOT_COORDINATOR),
    ],
    ids=lambda each: each.name if isinstance(each, Api) else KafkaError(each).name(),
)
def test_an_error_that_passes_aborts_nothing(made: Harness, api: Api, code: int) -> None:
    made.cluster.push_errors(api, [code] * 3)
    member = made.member(kafka=exactly(made))
    ask(made, 3)
    made.replies.wait(3)
    eventually(lambda: committed(member) == 3)
    assert member.events.count["commit_failed"] == 0
    assert member.loop.failure is None


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (Api.ADD_OFFSETS_TO_TXN, KafkaError.TRANSACTION_ABORTABLE),
        (Api.TXN_OFFSET_COMMIT, KafkaError.ILLEGAL_GENERATION),
        (Api.TXN_OFFSET_COMMIT, KafkaError.UNKNOWN_MEMBER_ID),
        (Api.TXN_OFFSET_COMMIT, KafkaError.REBALANCE_IN_PROGRESS),
    ],
    ids=lambda each: each.name if isinstance(each, Api) else KafkaError(each).name(),
)
def test_an_aborted_transaction_is_made_again_without_the_engine(made: Harness, api: Api, code: int) -> None:
    member = made.member(kafka=exactly(made))
    ask(made, 1)
    eventually(lambda: committed(member) == 1)
    made.cluster.push_errors(api, [code] * 2)
    ask(made, 3)
    eventually(lambda: committed(member) == 4)
    assert member.events.count["commit_failed"] == 2
    assert sum(member.engine.batches) == 4
    assert member.events.count["confirmed"] == 4
    assert member.loop.failure is None


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (Api.INIT_PRODUCER_ID, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (Api.INIT_PRODUCER_ID, KafkaError.INVALID_TRANSACTION_TIMEOUT),
        (Api.ADD_OFFSETS_TO_TXN, KafkaError.INVALID_PRODUCER_EPOCH),
        (Api.END_TXN, KafkaError.PRODUCER_FENCED),
    ],
    ids=lambda each: each.name if isinstance(each, Api) else KafkaError(each).name(),
)
def test_a_producer_that_is_out_ends_the_process_without_a_commit(made: Harness, api: Api, code: int) -> None:
    made.cluster.push_errors(api, [code])
    member = made.member(kafka=exactly(made), wait=False)
    ask(made, 3)
    eventually(lambda: member.loop.failure)
    assert "out for good" in str(member.loop.failure)
    assert any("failed" in reason for reason in member.snapshot().not_ready)
    assert member.stop() == 1
    assert committed(member) <= 0
    assert member.events.count["confirmed"] == 0


def test_topics_that_are_missing_are_told_and_an_outage_is_waited_for_once(made: Harness) -> None:
    producer: TransactionalProducer[None] = TransactionalProducer(exactly(made), lambda _: None, lambda: False)
    assert producer.missing({REPLIES, "nowhere"}) == {"nowhere"}
    made.cluster.broker_down()
    begun = time.monotonic()
    assert producer.missing([REPLIES, *(f"t{number}" for number in range(20))]) == set()
    assert time.monotonic() - begun < 10, "not a second for each"


def test_partitions_that_a_topic_has_not_are_told_and_a_topic_may_grow(
    made: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    producer: TransactionalProducer[None] = TransactionalProducer(
        exactly(made), lambda _: None, lambda: False, lambda: now
    )
    assert not producer.lacks(REPLIES, 77), "not known: the transaction will tell"
    assert producer.missing({REPLIES}) == set()
    assert [producer.lacks(REPLIES, number) for number in (0, 77)] == [False, True]
    grown = {"topic": 100}
    monkeypatch.setattr(producer, "_look_up", lambda *_: grown["topic"])
    assert producer.lacks(REPLIES, 77), "asked a moment ago"
    now = 1.0
    assert not producer.lacks(REPLIES, 77)


def test_a_reply_partition_that_does_not_exist_is_a_dead_letter_and_aborts_nothing(made: Harness) -> None:
    member = made.member(kafka=exactly(made))
    made.send("r1")
    made.send("r2", headers={"reply-partition": b"77"})
    made.send("r3", headers={"reply-partition": b"0"})
    made.flush()
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"reply_partition_unknown"
    assert {received.reply.request_id for received in made.replies.wait(2)} == {"r1", "r3"}
    eventually(lambda: committed(member) == 3)
    assert member.events.count["commit_failed"] == 0


def test_a_topic_that_is_expected_is_given_time_to_appear_and_one_that_a_request_names_is_not(made: Harness) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.5  # a look takes so long
        return now

    settings = exactly(made, reply_topic="soon")
    producer: TransactionalProducer[None] = TransactionalProducer(settings, lambda _: None, lambda: False, clock)
    assert producer.missing({"nowhere"}) == {"nowhere"}
    assert now == 1.0
    assert producer.missing({"soon"}) == {"soon"}
    assert now >= 3.0
    waited = now
    assert producer.missing({"soon"}) == {"soon"}
    assert now == waited + 1.0, "not expected any more"


def test_an_outage_within_the_limit_loses_nothing(made: Harness) -> None:
    member = made.member(kafka=exactly(made))
    ask(made, 1)
    eventually(lambda: committed(member) == 1)
    member.engine.gate.clear()
    ask(made, 10)
    eventually(lambda: member.snapshot().in_flight == 10)
    made.cluster.broker_down()
    member.engine.gate.set()
    eventually(lambda: member.events.recalled(11) or member.events.count["producer:_ALL_BROKERS_DOWN"])
    made.cluster.broker_up()
    eventually(lambda: committed(member) == 11, 40.0)
    assert member.loop.failure is None


def test_stopping_with_the_broker_down_keeps_to_the_budget(made: Harness) -> None:
    codes: list[int] = []
    member = made.member(kafka=exactly(made), drain_s=1.0, close_s=4.0, end_process=codes.append)
    ask(made, 1)
    eventually(lambda: committed(member) == 1)
    made.cluster.broker_down()
    member.engine.gate.clear()
    begun = time.monotonic()
    member.stop()
    assert time.monotonic() - begun < 10
    assert codes == []


def test_a_call_of_the_client_that_never_returns_ends_the_process(
    made: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(TransactionalProducer, "commit", lambda _: never.wait(60))
    member = made.member(kafka=exactly(made, brokers_down_limit_s=1.0), end_process=lambda _: None)
    ask(made, 1)
    eventually(lambda: member.loop.failure)
    assert "a transaction has been open for 1 s" in str(member.loop.failure)
    assert member.stop() == 1
    never.set()
