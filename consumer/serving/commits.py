"""How offsets of finished records reach the group, as the intake thread sees it."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from consumer.serving.in_flight import InFlight
from consumer.serving.offsets import OffsetTracker
from consumer.serving.settings import BatchSettings
from consumer.serving.transactional import AnsweredJob
from consumer.serving.turns import Turns
from consumer.stream.consumer import RequestConsumer
from consumer.stream.errors import StreamError
from consumer.stream.partition import Partition

_COMMIT_AGAIN_S = 1.0
"""A commit that failed is repeated after this."""


class Commits(Protocol):
    """Belongs to the intake thread."""

    @property
    def reserve(self) -> float:
        """The share of a revoked partition's drain that is kept for ``withdraw``."""

    def delivered(self, items: Sequence[InFlight]) -> None:
        """Records were read; called before they are answered."""

    def commit(self, consumer: RequestConsumer, tracker: OffsetTracker, *, at_once: bool) -> None:
        """Once a turn; ``at_once``: the last time before partitions are given up."""

    def drain(self, consumer: RequestConsumer) -> None:
        """Again and again while partitions that leave are finished; the group may have moved on meanwhile."""

    def withdraw(self, partitions: Collection[Partition], seconds: float) -> Sequence[InFlight]:
        """No offset of these is committed from now on; returns records that were answered, but will not be."""


class StoredCommits:
    """The client commits what is finished, some time after it was."""

    reserve = 0.0

    def __init__(self, settings: BatchSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._due = 0.0
        self._again = 0.0

    def delivered(self, items: Sequence[InFlight]) -> None:
        """Nothing to do."""

    def commit(self, consumer: RequestConsumer, tracker: OffsetTracker, *, at_once: bool) -> None:
        now = self._clock()
        if (now < self._due or consumer.committing) and not at_once:
            return
        self._due = now + self._settings.commit_interval_ms / 1000
        moved = False
        for partition, offset in list(tracker.committable()):
            tracker.stored(partition, offset)
            moved = True
        pending = tracker.uncommitted()
        if pending and (moved or at_once or now >= self._again):
            self._again = now + _COMMIT_AGAIN_S
            consumer.commit(pending)

    def drain(self, consumer: RequestConsumer) -> None:
        """Nothing to do: there is one commit at the end."""

    def withdraw(self, partitions: Collection[Partition], seconds: float) -> Sequence[InFlight]:
        return ()


class TransactionCommits:
    """Offsets go with their answers: here the publisher is told what this process is to the group and what it owns.

    Raises StreamError when a transaction takes longer than ``limit`` seconds.
    """

    reserve = 0.2

    def __init__(self, turns: Turns[AnsweredJob], limit: float) -> None:
        self._turns = turns
        self._limit = limit

    def delivered(self, items: Sequence[InFlight]) -> None:
        self._turns.deliver([item.ticket for item in items])

    def commit(self, consumer: RequestConsumer, tracker: OffsetTracker, *, at_once: bool) -> None:
        if self._turns.open_s() > self._limit:  # calls of the client have been seen not to return
            raise StreamError(f"a transaction has been open for {self._limit:g} s")
        self.drain(consumer)
        for partition, epoch, offset in list(tracker.chosen()):
            self._turns.start(partition, epoch, offset)
            tracker.stored(partition, offset)
        for partition, offset in self._turns.committed().items():
            tracker.stored(partition, offset)
            tracker.committed(partition, offset)

    def drain(self, consumer: RequestConsumer) -> None:
        self._turns.member(consumer.membership())

    def withdraw(self, partitions: Collection[Partition], seconds: float) -> Sequence[InFlight]:
        return [answered.item for answered in self._turns.withdraw(partitions, seconds)]
