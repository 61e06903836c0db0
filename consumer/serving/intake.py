"""The intake thread: the only one that touches the Consumer. Reads, admits, sweeps deadlines, completes, commits."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import Empty, SimpleQueue

from consumer.serving.admission import AdmissionGate, Flow
from consumer.serving.bad_records import BadRecordLimit
from consumer.serving.batch_queue import BatchQueue
from consumer.serving.commits import Commits
from consumer.serving.deadlines import Deadline, Moment
from consumer.serving.histories import Histories
from consumer.serving.in_flight import Done, InFlight, Job, Outcome
from consumer.serving.intake_view import IntakeView, partition_view
from consumer.serving.observer import ServingObserver
from consumer.serving.offsets import OffsetTracker
from consumer.serving.reader import RequestReader
from consumer.serving.settings import BatchSettings
from consumer.stream.consumer import RequestConsumer
from consumer.stream.partition import Partition, partition_of
from consumer.stream.settings import KafkaSettings
from consumer.wire.dead_letter import SourceRecord
from engine.errors import RequestError

_TURN_S = 0.05
_HOLD_S = 0.01
_PUBLISH_S = 0.2
_HOPELESS_S = 1.0
"""For leaving a group whose brokers are away."""

log = logging.getLogger(__name__)


class Intake:
    """``histories`` also takes what needs no engine. ``halted`` says that the process is failing: then nothing is
    committed.

    ``view`` and ``tick`` (monotonic seconds of the last turn) may be read, and ``confirmed`` called, from any thread.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        batch: BatchSettings,
        reader: RequestReader,
        queue: BatchQueue,
        histories: Histories,
        observer: ServingObserver,
        clock: Callable[[], float],
        halted: Callable[[], bool],
        limit: BadRecordLimit,
        commits: Commits,
    ) -> None:
        self.view = IntakeView()
        self.tick = clock()
        self._settings = batch
        self._reader = reader
        self._queue = queue
        self._histories = histories
        self._observer = observer
        self._clock = clock
        self._halted = halted
        self._limit = limit
        self._commits = commits
        self._tracker = OffsetTracker()
        self._gate = AdmissionGate(batch, kafka.max_message_bytes)
        self._done: SimpleQueue[Sequence[InFlight]] = SimpleQueue()
        self._in_flight = 0
        self._bytes = 0
        self._paused_at: float | None = None
        self._joined = False
        self._publish_due = 0.0
        self._drain: Deadline | None = None
        self._consumer = RequestConsumer(kafka, self)

    def confirmed(self, items: Sequence[InFlight]) -> None:
        """All that these records caused is acknowledged by the broker."""
        self._done.put(items)

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until told to stop; then finish what was read and commit it. Raises StreamError."""
        while not stopping():
            self._turn()
        if not self._halted():
            self._finish()

    def leave(self) -> None:
        """Leave the group; commits what is finished unless the process is failing."""
        if not self._consumer.close(_HOPELESS_S if self._consumer.away else self._settings.close_s):
            log.warning("the brokers did not answer: the group finds out by itself that this member is gone")

    # --- one turn -------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self.tick = now = self._clock()
        self._settle(0.0)
        next_deadline = self._queue.sweep()
        self._histories.sweep(now)
        flow = self._gate.update(self._in_flight, self._bytes, self._tracker.span(), now)
        self._pause_or_resume(flow is Flow.PAUSED, now)
        if flow is Flow.HOLD:
            self._settle(_HOLD_S)
        else:
            wait = _TURN_S if next_deadline is None else max(0.0, min(_TURN_S, next_deadline - now))
            room = 1 if flow is Flow.PAUSED else self._gate.room(self._in_flight, self._bytes)
            self._admit(self._consumer.poll(wait, room))
        self._commit()
        self._publish()

    def _admit(self, records: Sequence[SourceRecord]) -> None:
        if not records:
            return
        self._observer.received(len(records), sum([len(record.value or b"") for record in records]))
        now = Moment(time.time() * 1000, self._clock())
        self._limit.read(len(records), now.monotonic)
        reads = self._read(records, now)
        items = [read if isinstance(read, InFlight) else read.item for read in reads]
        self._in_flight += len(items)
        self._bytes += sum([item.size for item in items])
        self._commits.delivered(items)
        queued: list[InFlight] = []
        begin = 0
        for at, read in enumerate(reads):
            if type(read) is Done and read.cancels is not None:
                queued += self._histories.admit(reads[begin:at])
                queued = self._cancel(read.cancels, read.item.addressee.user_id, queued)
                begin = at
        queued += self._histories.admit(reads[begin:])
        if queued:
            self._queue.add(queued)

    def _read(self, records: Sequence[SourceRecord], now: Moment) -> list[InFlight | Job]:
        """Those that are ours and were not read before."""
        reads: list[InFlight | Job] = []
        topic, number, ownership, wall_ms = "", -1, None, now.wall_ms
        for record in records:
            if record.timestamp_ms > wall_ms:
                self._observer.clock_skew((record.timestamp_ms - wall_ms) / 1000)
            if record.partition != number or record.topic != topic:
                topic, number = record.topic, record.partition
                ownership = self._tracker.ownership(partition_of(topic, number))
            if ownership is not None and ownership.deliver(record.offset, record.timestamp_ms):
                reads.append(self._reader.read(record, ownership, now))
        return reads

    def _cancel(self, request_id: str, user: str | None, queued: list[InFlight]) -> list[InFlight]:
        """Answer the request, if it has not started, wherever it waits. Returns what is left of ``queued``."""

        def unwanted(item: InFlight) -> bool:
            return item.addressee.request_id == request_id and item.addressee.user_id == user

        found = [item for item in queued if unwanted(item)]
        gone = (*found, *self._queue.remove(unwanted), *self._histories.cancel(unwanted))
        cancelled = RequestError("cancelled", "the client cancelled it")
        self._histories.answer([Outcome(item, cancelled, "queue") for item in gone])
        return [item for item in queued if not unwanted(item)] if found else queued

    def _settle(self, wait: float) -> None:
        """Apply confirmations, waiting for the first one up to ``wait`` seconds."""
        try:
            items = self._done.get(timeout=wait) if wait else self._done.get_nowait()
            while True:
                self._release(items)
                for item in items:
                    if not item.ownership.finish(item.record.offset):
                        self._observer.late_result()
                items = self._done.get_nowait()
        except Empty:
            return

    def _release(self, items: Sequence[InFlight]) -> None:
        self._in_flight -= len(items)
        self._bytes -= sum([item.size for item in items])

    def _pause_or_resume(self, pause: bool, now: float) -> None:
        if pause and self._paused_at is None:
            self._paused_at = now
            self._consumer.pause()
        elif not pause and self._paused_at is not None:
            self._observer.paused(now - self._paused_at)
            self._paused_at = None
            self._consumer.resume()

    def _commit(self, *, at_once: bool = False) -> None:
        if not self._halted():
            self._commits.commit(self._consumer, self._tracker, at_once=at_once)

    # --- the end --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._drain = budget = Deadline(self._settings.drain_s, self._clock())
        self._consumer.pause()
        while self._is_unfinished(self._tracker.owned()) and self._may_wait(budget):
            # The group is still served. What a pause did not stop is not tracked: the next owner reads it again.
            self._consumer.poll(0.0, 1)
            self._let_finish(budget)
        self._commit(at_once=True)
        self._publish(at_once=True)

    def _is_unfinished(self, partitions: Sequence[Partition]) -> bool:
        """Records are, or histories wait to be written."""
        return self._tracker.unfinished(partitions) > 0 or self._histories.unflushed()

    def _may_wait(self, budget: Deadline) -> bool:
        return budget.left(self._clock(), keep=self._commits.reserve) > 0 and not self._halted()

    def _let_finish(self, budget: Deadline) -> None:
        self.tick = self._clock()
        self._queue.sweep()
        self._histories.sweep(self.tick)
        self._commits.drain(self._consumer)
        self._settle(min(_HOLD_S, budget.left(self.tick)))

    # --- what the group does --------------------------------------------------------------------------------------

    def assigned(self, starts: Mapping[Partition, int | None]) -> None:
        self._joined = True
        self._withdraw(starts.keys(), 0.0)  # a start that is chosen anew ends what was read from the old one
        self._tracker.assign(starts)
        self._publish_due = 0.0
        if starts:
            self._observer.rebalanced("assigned", len(starts))

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self._observer.rebalanced("revoked", len(partitions))
        budget = self._drain or Deadline(self._settings.revoke_drain_s, self._clock())
        while self._is_unfinished(partitions) and self._may_wait(budget):
            self._let_finish(budget)
        self._commit(at_once=True)
        self._give_up(partitions, budget.left(self._clock()))

    def lost(self, partitions: Sequence[Partition]) -> None:
        self._observer.rebalanced("lost", len(partitions))
        self._give_up(partitions, 0.0)

    def committed(self, offsets: Mapping[Partition, int]) -> None:
        self._observer.committed(True)
        for partition, offset in offsets.items():
            self._tracker.committed(partition, offset)

    def commit_failed(self, code: str) -> None:
        self._observer.committed(False)

    def offset_reset(self, partition: Partition, skipped: int) -> None:
        self._tracker.reset(partition)
        self._observer.offset_reset(skipped)

    def client_error(self, code: str) -> None:
        self._observer.client_error("consumer", code)

    def _give_up(self, partitions: Sequence[Partition], seconds: float) -> None:
        """Requests that have not started are the new owner's; what runs is still answered, its offsets are not ours."""
        gone = frozenset(partitions)
        self._release(self._queue.remove(lambda item: item.ownership.partition in gone))
        self._withdraw(gone, seconds)
        self._settle(0.0)
        self._tracker.drop(gone)
        self._publish_due = 0.0

    def _withdraw(self, partitions: Collection[Partition], seconds: float) -> None:
        self._release(self._histories.drop(partitions))
        self._release(self._commits.withdraw(partitions, seconds))

    # --- what others see ------------------------------------------------------------------------------------------

    def _publish(self, *, at_once: bool = False) -> None:
        now = self._clock()
        if not at_once and now < self._publish_due:
            return
        self._publish_due = now + _PUBLISH_S
        self.view = IntakeView(
            tuple(partition_view(each, self._tracker, self._consumer) for each in self._tracker.owned()),
            self._in_flight,
            self._bytes,
            self._paused_at is not None,
            self._joined,
            self._consumer.troubles,
            self._consumer.missing,
            self._consumer.group,
        )
