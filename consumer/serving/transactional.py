"""Answers and the group's offsets in one Kafka transaction: a read_committed reader sees each answer exactly once."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from consumer.serving.in_flight import InFlight, Job
from consumer.serving.observer import ServingObserver
from consumer.serving.publisher import IDLE_S
from consumer.serving.turns import Run, Turns
from consumer.serving.writer import ReplySent, ReplyWriter, Sent
from consumer.stream.errors import StreamError
from consumer.stream.outage import Outage
from consumer.stream.producer import Failure
from consumer.stream.settings import KafkaSettings
from consumer.stream.transactions import OF_TOPIC, OF_TRANSACTION, TransactionalProducer, TransactionError

_MISSING = Failure("topic_unknown", "UNKNOWN_TOPIC_OR_PART", "the brokers know no such topic", local=True)
_NO_PARTITION = Failure("partition_unknown", "_UNKNOWN_PARTITION", "the topic has no such partition", local=True)
_DENIED = Failure("topic_denied", "TOPIC_AUTHORIZATION_FAILED", "the brokers let us write nothing there", local=True)
_DENIED_S = 60.0
_DELIVERY_S = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class AnsweredJob:
    """What a record came to and when, and once its turn has come the sends that say so."""

    job: Job
    at: float
    sends: Sequence[Sent] | None = field(default=None)

    @property
    def item(self) -> InFlight:
        return self.job.item


class Transactional:
    """All answers whose turn it is, in one transaction with the offsets behind them.

    An aborted transaction costs nothing but time: its answers are still here and go into the next one, unless their
    partition is another owner's by then, who gives them. ``confirmed`` hears of records that need no more of us.
    """

    at_once = 256
    """Also the most of one transaction: what fits easily into its time-out."""

    def __init__(
        self,
        settings: KafkaSettings,
        turns: Turns[AnsweredJob],
        writer: ReplyWriter,
        producer: TransactionalProducer[Sent],
        confirmed: Callable[[Sequence[InFlight]], None],
        observer: ServingObserver,
        clock: Callable[[], float],
    ) -> None:
        self._turns = turns
        self._writer = writer
        self._producer = producer
        self._confirmed = confirmed
        self._observer = observer
        self._clock = clock
        self._failing = Outage(settings.brokers_down_limit_s)
        self._pause = 0.0
        self._resume_at = 0.0
        self._most = self.at_once
        self._denied: dict[str, float] = {}
        """Topics that take nothing from us, until when that is believed."""
        self._awaiting = 0
        self._failures: dict[Sent, Failure] = {}

    @property
    def patience(self) -> float:
        return min(IDLE_S, self._pause) if self._pause else IDLE_S

    def start(self) -> None:
        self._producer.start()

    def publish(self, jobs: Sequence[Job]) -> None:
        now = self._clock()
        if late := self._turns.answer([(job.item.ticket, AnsweredJob(job, now)) for job in jobs]):
            self._confirmed([answered.item for answered in late])
        while self._clock() >= self._resume_at and (run := self._turns.take(self._most)):
            self._transact(run)

    def abandon(self, budget: float) -> None:
        self._producer.abandon(budget)

    def _transact(self, run: Run[AnsweredJob]) -> None:
        for answered in run.answers.values():
            if answered.sends is None:
                answered.sends = self._writer.write(answered.job, answered.at)
        self._replace_those_without_a_place(run)
        self._awaiting = 0
        self._failures = {}
        try:
            self._producer.begin()
            self._send(run)
            self._producer.add_offsets(run.offsets, run.membership)
            self._await_deliveries(run)
            self._check_ownership(run)
            self._producer.commit()
        except TransactionError as error:
            self._abort(run, error)
        else:
            self._committed(run)

    def _replace_those_without_a_place(self, run: Run[AnsweredJob]) -> None:
        """Before the transaction: in it everybody's answers would wait for a topic, or be aborted for one or for a
        partition, that one client has named.
        """
        topics = {sent.topic for answered in run.answers.values() for sent in answered.sends or ()}
        missing = self._producer.missing(topics)
        now = self._clock()
        self._denied = {topic: until for topic, until in self._denied.items() if until > now}

        def why(sent: Sent) -> Failure | None:
            if sent.topic in missing:
                return _MISSING
            if sent.topic in self._denied:
                return _DENIED
            named = sent.item.headers.reply_partition if isinstance(sent, ReplySent) else None
            return None if named is None or not self._producer.lacks(sent.topic, named) else _NO_PARTITION

        self._replace(run, why)

    def _replace(self, run: Run[AnsweredJob], why: Callable[[Sent], Failure | None]) -> None:
        """``why`` a send cannot be written, None if it can."""
        for answered in run.answers.values():
            due: list[Sent] = []
            for sent in answered.sends or ():
                failure = why(sent)
                instead = sent if failure is None else self._writer.instead(sent, failure)
                if instead is not None:
                    due.append(instead)
            answered.sends = due

    def _send(self, run: Run[AnsweredJob]) -> None:
        for answered in run.answers.values():
            for sent in answered.sends or ():
                if sent.alone:
                    self._await_deliveries(run)
                self._awaiting += 1
                self._writer.send([sent], self._producer)
                if sent.alone:
                    self._await_deliveries(run)

    def _await_deliveries(self, run: Run[AnsweredJob]) -> None:
        while self._awaiting:
            self._collect(_DELIVERY_S)
            for sent, failure in self._failures.items():
                fault = self._producer.fault() if failure.code in OF_TRANSACTION else None
                raise fault or TransactionError(failure.code, f"{sent.topic}: {failure.message}")
            self._check_ownership(run)

    def _collect(self, timeout: float) -> None:
        reports = self._producer.poll(timeout)
        self._awaiting -= len(reports)
        self._failures.update(reports.failed)

    def _check_ownership(self, run: Run[AnsweredJob]) -> None:
        """The brokers would take offsets of a partition that has moved, as long as we are in the group."""
        if not self._turns.owned(run):
            raise TransactionError("partition_moved", "a partition of this transaction is another member's by now")

    def _committed(self, run: Run[AnsweredJob]) -> None:
        self._pause, self._most = 0.0, min(self.at_once, 2 * self._most)
        self._failing.clear()
        self._observer.committed(True)
        now = self._clock()
        self._writer.delivered([sent for answered in run.answers.values() for sent in answered.sends or ()], now)
        self._writer.finished([answered.item for answered in run.answers.values()])
        self._confirmed([answered.item for answered in run.answers.values()])
        self._turns.end(run, committed=True)

    def _abort(self, run: Run[AnsweredJob], error: TransactionError) -> None:
        self._observer.committed(False)
        self._producer.abort()
        self._collect(0)
        log.warning("a transaction of %d answers was aborted, they go into the next: %s", len(run.answers), error)
        culprits = {sent: why for sent, why in self._failures.items() if why.code not in OF_TRANSACTION}
        culprits = culprits or self._refused(run, error)
        self._replace(run, culprits.get)
        if gone := self._turns.end(run, committed=False):
            self._confirmed([answered.item for answered in gone])
        if not culprits:
            self._wait(error, len(run.answers))

    def _refused(self, run: Run[AnsweredJob], error: TransactionError) -> dict[Sent, Failure]:
        """What a transaction failed for that failed for a topic: known once it holds one answer only."""
        if error.code not in OF_TOPIC or len(run.answers) != 1:
            return {}
        (answered,) = run.answers.values()
        sends = sorted(answered.sends or (), key=lambda sent: not isinstance(sent, ReplySent))
        for sent in sends[:1]:  # of a reply and a dead letter rather the reply: its topic may be of a client's choice
            self._denied[sent.topic] = self._clock() + _DENIED_S
            return {sent: _DENIED}
        return {}

    def _wait(self, error: TransactionError, size: int) -> None:
        now = self._clock()
        self._failing.note(now)
        if self._failing.over_limit(now):
            raise StreamError(f"no transaction can be committed: {error}")
        if error.code in OF_TOPIC:  # one of so many is the reason
            self._most = min(self._most, size)
        self._most = max(1, self._most // 2)  # it may have been too much for the time-out
        self._pause = min(max(_FIRST_PAUSE_S, 2 * self._pause), _LONGEST_PAUSE_S)
        self._resume_at = now + self._pause
