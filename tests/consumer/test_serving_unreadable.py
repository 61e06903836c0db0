"""Record batches that the client cannot read: a few kilobytes may unpack to gigabytes."""

from collections.abc import Iterator
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from consumer.stream.partition import Partition
from consumer.stream.unreadable import UnreadableRecords
from tests.consumer.serving_harness import REQUESTS, SILENT, Harness, Member, Received, harness
from tests.consumer.waiting import eventually

MOST = 1_000_000
BOMB = bytes(4 * MOST)


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def send_bombs(made: Harness, count: int) -> None:
    """``count`` records in one compressed batch, of more than a consumer of ``member`` unpacks."""
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
        producer.produce(REQUESTS, BOMB, partition=0)
    assert producer.flush(20) == 0


def member(made: Harness) -> Member:
    limits = {"fetch.max.bytes": MOST, "receive.message.max.bytes": MOST + 1_000, "fetch.error.backoff.ms": 10}
    return made.member(kafka=made.kafka(consumer_options={**made.kafka().consumer_options, **limits}))


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
        records.note(partition, batch, "too large")
        records.note(partition, batch, "too large")  # the client said it twice before it was asked
        return [record.offset for record in records.skip(cast(Consumer, client), paused=False)]

    records.begin({partition: 5})
    assert [passed(3), passed(3), passed(20), passed(20)] == [[5], [6], [20], [21]]
    assert client.assigned == [(0, 6), (0, 7), (0, 21), (0, 22)]
    records.note(partition, 30, "too large")
    records.forget([partition])
    assert list(records.skip(cast(Consumer, client), paused=False)) == [], "it is another member's"
