"""Which answers may leave in a transaction: of each owned partition those of the oldest records, without a gap.

The committed offset is all that a next owner knows. An answer that left before an older record's would be given
again by it, so answers wait for their turn; and none leaves for a partition whose ownership is over.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Condition
from typing import Generic, TypeVar

from consumer.serving.offsets import Ticket
from consumer.stream.partition import Partition

J = TypeVar("J")


@dataclass(frozen=True, slots=True)
class Run(Generic[J]):
    """What one transaction holds: answers, and the offset that each partition gets.

    ``membership``: the group's view of this process at a time when it owned all these partitions.
    """

    answers: Mapping[Ticket, J]
    offsets: Mapping[Partition, int]
    epochs: Mapping[Partition, int]
    membership: bytes


@dataclass(slots=True)
class _Waiting(Generic[J]):
    """Of one ownership: its delivered records, oldest first, with their answers; a start that was chosen."""

    epoch: int
    records: dict[Ticket, J | None] = field(default_factory=dict)
    start: int | None = None


class Turns(Generic[J]):
    """Between the intake thread, which owns partitions, and the reply thread, which runs one transaction at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = Condition()
        self._waiting: dict[Partition, _Waiting[J]] = {}
        self._membership: bytes | None = None
        self._open: Run[J] | None = None
        self._opened = 0.0
        self._committed: dict[Partition, int] = {}

    # --- the intake thread ----------------------------------------------------------------------------------------

    def deliver(self, tickets: Iterable[Ticket]) -> None:
        """Records were read; in the order of their partitions."""
        with self._changed:
            for ticket in tickets:
                self._of(ticket.partition, ticket.epoch).records[ticket] = None

    def start(self, partition: Partition, epoch: int, offset: int) -> None:
        """Commit where reading starts, as nothing is committed yet."""
        with self._changed:
            self._of(partition, epoch).start = offset

    def member(self, membership: bytes | None) -> None:
        """What the group knows this process as; none while it is no member."""
        with self._changed:
            self._membership = membership

    def committed(self) -> dict[Partition, int]:
        """Offsets that were committed since the last call, of partitions that are still ours."""
        with self._changed:
            committed, self._committed = self._committed, {}
            return committed

    def open_s(self) -> float:
        """Seconds since the transaction that is open was begun; 0 without one."""
        with self._changed:
            return 0.0 if self._open is None else self._clock() - self._opened

    def withdraw(self, partitions: Collection[Partition], seconds: float) -> list[J]:
        """End the ownership; returns the answers that never leave.

        Waits up to ``seconds`` until no open transaction holds any of these partitions. One that still does then is
        harmless: the brokers refuse its offsets, or let nobody read on before it has ended.
        """
        with self._changed:
            gone = [self._waiting.pop(partition, None) for partition in partitions]
            for partition in partitions:
                self._committed.pop(partition, None)
            self._changed.wait_for(
                lambda: self._open is None or self._open.offsets.keys().isdisjoint(partitions), seconds
            )
        return [answer for each in gone if each for answer in each.records.values() if answer is not None]

    # --- the reply thread -----------------------------------------------------------------------------------------

    def answer(self, answers: Iterable[tuple[Ticket, J]]) -> list[J]:
        """They wait for their turn; returns those whose records are other owners' by now, who answer them."""
        with self._changed:
            gone: list[J] = []
            for ticket, answer in answers:
                waiting = self._waiting.get(ticket.partition)
                if waiting is None or ticket not in waiting.records:
                    gone.append(answer)
                else:
                    waiting.records[ticket] = answer
            return gone

    def take(self, most: int) -> Run[J] | None:
        """What can leave now, at most so many answers. To be given back to ``end``."""
        with self._changed:
            if self._membership is None:
                return None
            answers: dict[Ticket, J] = {}
            offsets: dict[Partition, int] = {}
            for partition, waiting in self._waiting.items():
                for ticket, answer in waiting.records.items():
                    if answer is None or len(answers) >= most:
                        break
                    answers[ticket] = answer
                    offsets[partition] = ticket.offset + 1
                if partition not in offsets and waiting.start is not None:
                    offsets[partition] = waiting.start
            if not offsets:
                return None
            for ticket in answers:
                del self._waiting[ticket.partition].records[ticket]
            for partition in offsets:  # the others are first next time
                self._waiting[partition] = self._waiting.pop(partition)
            epochs = {partition: self._waiting[partition].epoch for partition in offsets}
            self._open = Run(answers, offsets, epochs, self._membership)
            self._opened = self._clock()
            return self._open

    def owned(self, run: Run[J]) -> bool:
        """Whether all of it is still ours to commit."""
        with self._changed:
            return all(self._is_owned(partition, run) for partition in run.offsets)

    def end(self, run: Run[J], *, committed: bool) -> list[J]:
        """The transaction is over. Aborted, its answers wait again; returns those that are another owner's now."""
        with self._changed:
            gone: list[J] = []
            for partition, offset in run.offsets.items():
                owned = self._is_owned(partition, run)
                if committed:
                    if owned:
                        self._committed[partition] = offset
                        self._waiting[partition].start = None
                    continue
                answers = {ticket: answer for ticket, answer in run.answers.items() if ticket.partition == partition}
                if owned:
                    waiting = self._waiting[partition]
                    waiting.records = answers | waiting.records
                else:
                    gone += answers.values()
            self._open = None
            self._changed.notify_all()
            return gone

    def _of(self, partition: Partition, epoch: int) -> _Waiting[J]:
        waiting = self._waiting.get(partition)
        if waiting is None or waiting.epoch != epoch:
            waiting = self._waiting[partition] = _Waiting(epoch)
        return waiting

    def _is_owned(self, partition: Partition, run: Run[J]) -> bool:
        waiting = self._waiting.get(partition)
        return waiting is not None and waiting.epoch == run.epochs[partition]
