"""Where partitions end is known without fetching them."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from consumer.service.progress import PartitionState, StallDetector
from consumer.stream import ends
from consumer.stream.ends import PartitionEnds
from consumer.stream.partition import Partition
from tests.consumer.serving_harness import REQUESTS, Harness, harness
from tests.consumer.waiting import eventually

FIRST, SECOND = Partition(REQUESTS, 0), Partition(REQUESTS, 1)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "ASK_EVERY_S", 0.05)


@pytest.fixture
def split() -> Iterator[Harness]:
    """Each of two partitions on its own broker."""
    with harness(partitions=2, brokers=2) as each:
        each.cluster.set_leader(REQUESTS, 0, 1)
        each.cluster.set_leader(REQUESTS, 1, 2)
        yield each


def test_ends_follow_and_a_leader_that_is_gone_holds_up_no_other(split: Harness) -> None:
    known = PartitionEnds(AdminClient(split.kafka().connection()))

    def end(partition: Partition) -> int | None:
        known.refresh((FIRST, SECOND), time.monotonic())
        return known.end(partition)

    assert end(FIRST) is None
    split.send(partition=0)
    split.send(partition=1)
    split.flush()
    eventually(lambda: end(FIRST) == end(SECOND) == 1)
    split.cluster.broker_down(2)
    split.send(partition=0)
    split.flush()
    eventually(lambda: end(FIRST) == 2)
    assert end(SECOND) == 1


def test_reading_has_passed_what_lies_between_its_position_and_the_end_that_it_stood_at() -> None:
    known = PartitionEnds(AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}))
    assert known.passed(FIRST, 5) is None
    known.reached(FIRST, 7)
    assert (known.passed(FIRST, 5), known.passed(FIRST, 7)) == (7, 7)
    assert known.passed(FIRST, 8) is None, "reading went on"
    known.forget(FIRST)
    assert known.passed(FIRST, 5) is None


def test_a_partition_whose_fetches_have_ended_shows_its_lag_and_is_found_stalled(split: Harness) -> None:
    member = split.member()
    eventually(lambda: len(member.owned()) == 2)
    client = member.loop._intake._consumer._consumer
    client.pause([TopicPartition(*SECOND)])  # behind the service's back, as a fetch that silently ends
    for partition in (0, 1):
        split.send(f"p{partition}", partition=partition)
    split.flush()
    assert split.replies.wait(1)[0].reply.request_id == "p0"
    detector = StallDetector(0.5, time.monotonic)

    def stalled() -> list[int]:
        partitions = member.snapshot().partitions
        states = [PartitionState(p.topic, p.partition, p.committed or 0, p.lag) for p in partitions]
        return [number for _, number in detector.observe(states)]

    eventually(lambda: stalled() == [1])
    assert {p.partition: p.lag for p in member.snapshot().partitions} == {0: 0, 1: 1}
