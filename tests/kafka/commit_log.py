"""What a group committed, from the brokers' own log of commits, and where it went backwards."""

import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

LOG = "__consumer_offsets"
_WAIT_S = 10.0
_OFFSET_COMMIT_KEYS = (0, 1)


@dataclass(frozen=True, slots=True)
class Commit:
    """``offset`` is the next one to read; ``at_ms`` the coordinator's time."""

    topic: str
    partition: int
    offset: int
    at_ms: int


def read_commits(bootstrap_servers: str, group: str) -> list[Commit]:
    """Every commit of ``group``, oldest first, up to the moment of the call."""
    found = (parse_commit(key, value, at_ms) for key, value, at_ms in _commit_records(bootstrap_servers))
    return [commit for name, commit in (each for each in found if each) if name == group]


def parse_commit(key: bytes | None, value: bytes | None, at_ms: int) -> tuple[str, Commit] | None:
    """The group and its commit, if that is what the record of the log holds."""
    if key is None or value is None or struct.unpack_from(">h", key)[0] not in _OFFSET_COMMIT_KEYS:
        return None
    group, at = _string(key, 2)
    topic, at = _string(key, at)
    (partition,) = struct.unpack_from(">i", key, at)
    (offset,) = struct.unpack_from(">q", value, 2)
    return group, Commit(topic, partition, offset, at_ms)


def decreases(commits: Sequence[Commit]) -> list[Commit]:
    """The commits below one that stood before them."""
    highest: dict[tuple[str, int], int] = {}
    backwards = []
    for commit in commits:
        place = commit.topic, commit.partition
        if commit.offset < highest.get(place, 0):
            backwards.append(commit)
        highest[place] = max(commit.offset, highest.get(place, 0))
    return backwards


def read_to_end(bootstrap_servers: str, topic: str, isolation: str = "read_committed") -> Iterator[Message]:
    """Every record that ``topic`` holds now and that a reader of this isolation level is given."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    try:
        open_ends = {}
        for number in consumer.list_topics(topic, timeout=_WAIT_S).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_WAIT_S)
            if low < high:
                open_ends[number] = high
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in open_ends])
        while open_ends:
            message = consumer.poll(_WAIT_S)
            if message is None:
                raise TimeoutError(f"{topic} was not read to its end")
            number, offset = message.partition(), message.offset()
            if message.error() is None:
                yield message
            if number is not None and offset is not None and offset >= open_ends.get(number, 0) - 1:
                open_ends.pop(number, None)
    finally:
        consumer.close()


def _commit_records(bootstrap_servers: str) -> Iterator[tuple[bytes | None, bytes | None, int]]:
    for message in read_to_end(bootstrap_servers, LOG):
        yield message.key(), message.value(), message.timestamp()[1]


def _string(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size
