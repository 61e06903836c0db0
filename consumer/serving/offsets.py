"""Which offsets may be committed: per partition, everything below the first record that is not finished.

Only delivered offsets are tracked, so holes in the log (compaction, transaction markers) hold nothing back. Each
ownership of a partition has an epoch: what was delivered under an earlier one no longer moves any offset.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from consumer.stream.partition import Partition


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """One delivered record under one ownership of its partition."""

    partition: Partition
    offset: int
    epoch: int


class Ownership:
    """Of a partition, under which its records are delivered and finished. Belongs to the thread that owns the consumer,
    but ``partition`` and ``epoch``, which never change.

    ``position``: next offset to be delivered; ``stored``: next offset as last handed to the client for a commit.
    """

    __slots__ = ("_delivered", "_unfinished", "committed", "epoch", "partition", "position", "stored")

    def __init__(self, partition: Partition, epoch: int, start: int | None) -> None:
        self.partition, self.epoch = partition, epoch
        self.position = self.stored = self.committed = start
        self._delivered: deque[int] = deque()
        """In their order; those that are finished leave its head when the span is asked for, which is every turn."""
        self._unfinished: dict[int, int] = {}
        """Offset to record timestamp."""

    def deliver(self, offset: int, timestamp_ms: int) -> bool:
        """Track a record that was read. False: it was read before."""
        position = self.position
        if position is None:
            self.stored = self.committed = offset
        elif offset < position:
            return False
        self._delivered.append(offset)
        self._unfinished[offset] = timestamp_ms
        self.position = offset + 1
        return True

    def finish(self, offset: int) -> bool:
        """False: the ownership is over (or the record was finished before), nothing changes."""
        return self._unfinished.pop(offset, None) is not None

    def end(self) -> None:
        """Finished or not, nothing of it moves any offset any more."""
        self._delivered.clear()
        self._unfinished.clear()

    @property
    def unfinished(self) -> int:
        """Delivered records that are not finished."""
        return len(self._unfinished)

    @property
    def span(self) -> int:
        """Offsets that wait, finished ones behind an unfinished one included."""
        delivered, unfinished = self._delivered, self._unfinished
        while delivered and delivered[0] not in unfinished:
            delivered.popleft()
        return len(delivered)

    @property
    def watermark(self) -> int | None:
        """Everything below is finished."""
        return self._delivered[0] if self.span else self.position

    @property
    def oldest(self) -> float | None:
        """Timestamp of the oldest unfinished record, seconds of the epoch."""
        return self._unfinished[self._delivered[0]] / 1000 if self.span else None


@dataclass(frozen=True, slots=True)
class Progress:
    """One owned partition; offsets name the next record. ``oldest``: timestamp of the oldest unfinished record."""

    epoch: int
    position: int | None
    watermark: int | None
    committed: int | None
    unfinished: int
    oldest: float | None


class OffsetTracker:
    """Not thread-safe: it belongs to the thread that owns the consumer."""

    def __init__(self) -> None:
        self._owned: dict[Partition, Ownership] = {}
        self._epoch = 0

    def assign(self, starts: Mapping[Partition, int | None]) -> None:
        """Begin a new ownership. A start offset, where one is known, is what the group has committed."""
        self.drop(starts)
        for partition, start in starts.items():
            self._epoch += 1
            self._owned[partition] = Ownership(partition, self._epoch, start)

    def reset(self, partition: Partition) -> None:
        """The start was chosen, not committed: makes it committable, so that the choice is made once."""
        owned = self._owned[partition]
        owned.stored = owned.committed = None

    def drop(self, partitions: Iterable[Partition]) -> None:
        """End the ownership; finished or not, nothing of it is committable any more."""
        for partition in partitions:
            if owned := self._owned.pop(partition, None):
                owned.end()

    def ownership(self, partition: Partition) -> Ownership | None:
        """The current one; none: not owned."""
        return self._owned.get(partition)

    def committable(self) -> Iterator[tuple[Partition, int]]:
        """Partitions whose next offset to commit lies above the one stored last."""
        for partition, owned in self._owned.items():
            watermark = owned.watermark
            if watermark is not None and (owned.stored is None or watermark > owned.stored):
                yield partition, watermark

    def stored(self, partition: Partition, offset: int) -> None:
        """The client took this offset for its next commit."""
        if owned := self._owned.get(partition):
            owned.stored = offset

    def committed(self, partition: Partition, offset: int) -> None:
        """The broker confirmed a commit; an answer to an older one is ignored."""
        owned = self._owned.get(partition)
        if owned and owned.stored is not None and offset <= owned.stored:
            owned.committed = max(offset, owned.committed or 0)

    def chosen(self) -> Iterator[tuple[Partition, int, int]]:
        """Partitions, with their epoch and start, whose start was chosen and not stored since."""
        for partition, owned in self._owned.items():
            if owned.stored is None and owned.watermark is not None:
                yield partition, owned.epoch, owned.watermark

    def uncommitted(self) -> dict[Partition, int]:
        """What was stored last, where the broker has not confirmed it yet."""
        return {
            partition: owned.stored
            for partition, owned in self._owned.items()
            if owned.stored is not None and owned.stored != owned.committed
        }

    def unfinished(self, partitions: Iterable[Partition]) -> int:
        """Delivered records of these partitions that are not finished."""
        return sum(owned.unfinished for partition in partitions if (owned := self._owned.get(partition)))

    def span(self) -> int:
        """The most offsets that one partition keeps waiting, finished ones behind an unfinished one included."""
        return max((owned.span for owned in self._owned.values()), default=0)

    def owned(self) -> tuple[Partition, ...]:
        return tuple(self._owned)

    def progress(self, partition: Partition) -> Progress:
        """Raises KeyError for a partition that is not owned."""
        owned = self._owned[partition]
        return Progress(
            owned.epoch,
            owned.position,
            owned.watermark,
            owned.committed,
            owned.unfinished,
            owned.oldest,
        )
