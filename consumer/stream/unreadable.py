"""Record batches that the client cannot read, for example because they unpack to more than it takes.

The client would fetch such a batch for ever. It is passed over offset by offset, as only its first one is known: each
becomes a record without bytes, so that it is counted and kept as a dead letter like any bad record.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError

from consumer.stream.partition import Partition
from consumer.stream.starts import start_anew
from consumer.wire.dead_letter import SourceRecord

_UNREADABLE: Final = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})


class UnreadableRecords:
    """Partitions whose next record cannot be read. One thread."""

    def __init__(self) -> None:
        self._next: dict[Partition, int] = {}
        self._found: dict[Partition, tuple[int, str]] = {}

    def begin(self, starts: Mapping[Partition, int]) -> None:
        """Reading of these partitions begins at these offsets."""
        self._next.update(starts)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """They are another member's."""
        for partition in partitions:
            self._next.pop(partition, None)
            self._found.pop(partition, None)

    def note(self, error: KafkaError, topic: str | None, number: int | None, batch: int | None) -> bool:
        """Whether the client gives up on the batch that begins at offset ``batch``; it says so at every attempt."""
        if error.code() not in _UNREADABLE or topic is None or number is None or batch is None:
            return False
        self._found.setdefault(Partition(topic, number), (batch, error.str()))
        return True

    def skip(self, consumer: Consumer, *, paused: bool) -> Iterator[SourceRecord]:
        """One record of each such partition, after which reading goes on. Raises KafkaException."""
        found, self._found = self._found, {}
        for partition, (batch, reason) in found.items():
            offset = max(batch, self._next.get(partition, batch))
            self._next[partition] = offset + 1
            start_anew(consumer, partition, offset + 1, paused=paused)
            yield SourceRecord(
                *partition, offset, round(time.time() * 1000), None, None, fault=f"it cannot be read: {reason}"
            )
