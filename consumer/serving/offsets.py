"""Which offsets may be committed: per partition, everything below the first record that is not finished.

Only delivered offsets are tracked, so holes in the log (compaction, transaction markers) hold nothing back. Each
ownership of a partition has an epoch: what was delivered under an earlier one no longer moves any offset.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from consumer.stream.partition import Partition


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """One delivered record under one ownership of its partition."""

    partition: Partition
    offset: int
    epoch: int


@dataclass(slots=True)
class _Owned:
    epoch: int
    position: int | None
    """Next offset to be delivered."""
    stored: int | None
    """Next offset as last handed to the client for a commit."""
    committed: int | None
    delivered: deque[int] = field(default_factory=deque)
    """In their order; starts with an unfinished one."""
    unfinished: dict[int, float] = field(default_factory=dict)
    """Offset to record timestamp."""

    @property
    def watermark(self) -> int | None:
        return self.delivered[0] if self.delivered else self.position


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
        self._owned: dict[Partition, _Owned] = {}
        self._epoch = 0

    def assign(self, starts: Mapping[Partition, int | None]) -> None:
        """Begin a new ownership. A start offset, where one is known, is what the group has committed."""
        for partition, start in starts.items():
            self._epoch += 1
            self._owned[partition] = _Owned(self._epoch, start, start, start)

    def reset(self, partition: Partition) -> None:
        """The start was chosen, not committed: makes it committable, so that the choice is made once."""
        owned = self._owned[partition]
        owned.stored = owned.committed = None

    def drop(self, partitions: Iterable[Partition]) -> None:
        """End the ownership; finished or not, nothing of it is committable any more."""
        for partition in partitions:
            self._owned.pop(partition, None)

    def deliver(self, partition: Partition, offset: int, timestamp: float) -> Ticket | None:
        """Track a record that was read. None: not owned, or read before under this ownership."""
        owned = self._owned.get(partition)
        if owned is None or (owned.position is not None and offset < owned.position):
            return None
        if owned.position is None:
            owned.stored = owned.committed = offset
        owned.delivered.append(offset)
        owned.unfinished[offset] = timestamp
        owned.position = offset + 1
        return Ticket(partition, offset, owned.epoch)

    def complete(self, ticket: Ticket) -> bool:
        """Mark a record finished. False: its ownership is over (or it was finished before), nothing changes."""
        owned = self._owned.get(ticket.partition)
        if owned is None or owned.epoch != ticket.epoch:
            return False
        delivered, unfinished = owned.delivered, owned.unfinished
        if unfinished.pop(ticket.offset, None) is None:
            return False
        while delivered and delivered[0] not in unfinished:
            delivered.popleft()
        return True

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
        return sum(len(owned.unfinished) for partition in partitions if (owned := self._owned.get(partition)))

    def span(self) -> int:
        """The most offsets that one partition keeps waiting, finished ones behind an unfinished one included."""
        return max((len(owned.delivered) for owned in self._owned.values()), default=0)

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
            len(owned.unfinished),
            owned.unfinished[owned.delivered[0]] if owned.delivered else None,
        )
