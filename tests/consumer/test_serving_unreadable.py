"""Record batches that the client cannot read: a few kilobytes may unpack to gigabytes."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from threading import Event
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from consumer.client import RecallClient
from consumer.stream.item_changes import ItemChanges
from consumer.stream.partition import Partition
from consumer.stream.settings import KafkaSettings
from consumer.stream.topic_reader import TopicReader
from consumer.stream.unreadable import UnreadableRecords
from tests.consumer.serving_harness import DEAD_LETTERS, REPLIES, REQUESTS, SILENT, Harness, Member, Received, harness
from tests.consumer.waiting import eventually

MOST = 1_000_000
BOMB = bytes(4 * MOST)
LIMITS = {"fetch.max.bytes": MOST, "receive.message.max.bytes": MOST + 1_000, "fetch.error.backoff.ms": 10}
TOO_LARGE = KafkaError(KafkaError._BAD_COMPRESSION)


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def limited(made: Harness) -> KafkaSettings:
    """Clients that take little."""
    return made.kafka(consumer_options={**made.kafka().consumer_options, **LIMITS})


def send_bombs(made: Harness, count: int, topic: str = REQUESTS) -> None:
    """``count`` records in one compressed batch, of more than such a client unpacks."""
    producer = Producer(
        {
            "bootstrap.servers": made.bootstrap_servers,
            "compression.type": "zstd",
            "linger.ms": 1_000,
            "batch.size": 1 << 26,
            "message.max.bytes": 1 << 26,
        },
        logger=SILENT,
    )
    for _ in range(count):
        producer.produce(topic, BOMB, partition=0)
    assert producer.flush(20) == 0


def member(made: Harness) -> Member:
    return made.member(kafka=limited(made))


def origins(letters: list[Received]) -> list[tuple[bytes | None, ...]]:
    names = ("dlq.original.offset", "dlq.error.class", "dlq.error.stage", "dlq.truncated")
    return [(letter.value, *(letter.headers[name] for name in names)) for letter in letters]


@pytest.mark.parametrize("bombs", [1, 3])
def test_a_batch_that_unpacks_to_too_much_is_passed_over_and_its_neighbours_are_answered(
    made: Harness, bombs: int
) -> None:
    made.send("before")
    made.flush()
    send_bombs(made, bombs)
    made.send("after")
    made.flush()
    first = member(made)
    assert {received.reply.request_id for received in made.replies.wait(2)} == {"before", "after"}
    expected = [(None, b"%d" % (1 + at), b"bad_request", b"read", b"true") for at in range(bombs)]
    assert origins(made.dead_letters.wait(bombs)) == expected
    eventually(lambda: made.committed() == bombs + 2)
    assert first.stop() == 0


class Client:
    """Hears where a partition is to be read on."""

    def __init__(self) -> None:
        self.assigned: list[tuple[int, int]] = []

    def incremental_unassign(self, _partitions: list[TopicPartition]) -> None: ...
    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += [(each.partition, each.offset) for each in partitions]


def test_who_takes_over_within_such_a_batch_goes_on_from_the_start_that_is_its_own() -> None:
    client, records, partition = Client(), UnreadableRecords(), Partition(REQUESTS, 0)

    def passed(batch: int) -> list[int]:
        for _ in range(2):  # the client may say it twice before it is asked
            assert records.note(TOO_LARGE, REQUESTS, 0, batch)
        return [record.offset for record in records.skip(cast(Consumer, client), paused=False)]

    records.begin({partition: 5})
    assert [passed(3), passed(3), passed(20), passed(20)] == [[5], [6], [20], [21]]
    assert client.assigned == [(0, 6), (0, 7), (0, 21), (0, 22)]
    assert records.note(TOO_LARGE, REQUESTS, 0, 30)
    records.forget([partition])
    assert list(records.skip(cast(Consumer, client), paused=False)) == [], "it is another member's"


def test_a_reader_of_dead_letters_shows_its_place_and_reads_on(made: Harness) -> None:
    made.send("first", topic=DEAD_LETTERS)
    made.flush()
    send_bombs(made, 2, DEAD_LETTERS)
    made.send("last", topic=DEAD_LETTERS)
    made.flush()
    with closing(TopicReader(limited(made), DEAD_LETTERS)) as topic:
        found = [(record.offset, record.fault is not None) for record in topic.records()]
        cut = [record.offset for record in topic.records({0: (2, 4)})]
    assert found == [(0, False), (1, True), (2, True), (3, False)]
    assert cut == [2, 3]


def test_item_changes_behind_it_are_read(made: Harness, caplog: pytest.LogCaptureFixture) -> None:
    send_bombs(made, 2)
    made.send(value=b"a change")
    made.flush()
    with closing(ItemChanges(limited(made), REQUESTS, lambda left: left)) as changes:
        records = eventually(lambda: changes.read(1.0, 10, Event()))
        assert [(record.offset, record.value) for record in records] == [(2, b"a change")]
        changes.commit()
    assert made.committed() == 3
    assert "refused: recall.requests 0 @ 1: it cannot be read" in caplog.text


def test_a_client_goes_on_to_read_replies_behind_it(made: Harness) -> None:
    async def ask() -> int:
        async with RecallClient(limited(made), reply_partition=0) as client:
            await asyncio.to_thread(send_bombs, made, 1, REPLIES)
            return len((await client.recall(history=[1], user_id="u")).items)

    made.member()
    assert asyncio.run(ask()) == 3
