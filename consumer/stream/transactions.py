"""The producer of replies in transactions that also hold the group's offsets (KIP-447: one producer a process)."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from consumer.stream.errors import TOPIC_MISSING, StreamError, is_fatal, name_of, reason_of
from consumer.stream.outage import Outage
from consumer.stream.partition import Partition
from consumer.stream.producer import ReplyProducer
from consumer.stream.settings import ClientOptions, KafkaSettings
from engine.errors import RecallstreamError

OF_TRANSACTION: Final = frozenset(
    name_of(KafkaError(code))
    for code in (
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._STATE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._INCONSISTENT,
    )
)
"""Codes of records that failed with their transaction and not by themselves."""

OF_TOPIC: Final = frozenset(
    name_of(KafkaError(code)) for code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION)
)
"""Codes of a transaction that failed for one of its topics; none says for which."""

_STEP_S: Final = 1.0
"""The client waits so long at most, then asks whether to go on."""
_PAUSE_S: Final = 0.02
_APPEARS_S: Final = 2.0
_ASK_AGAIN_S: Final = 1.0

T = TypeVar("T")


class TransactionError(RecallstreamError):
    """This transaction can only be aborted; the next one may well succeed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class TransactionalProducer(ReplyProducer[T]):
    """``start`` once, then ``begin``, ``send``, ``add_offsets`` and ``commit``; ``abort`` after a TransactionError.

    What the client calls retriable is tried again until ``give_up`` says so or ``brokers_down_limit_s`` have passed.
    Raises StreamError when the producer is out, as when another one has taken its transactional id.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        client_error: Callable[[str], None],
        give_up: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(settings, client_error)
        self._give_up = give_up
        self._clock = clock
        self._outage = Outage(settings.brokers_down_limit_s)
        self._begun = False
        self._there: dict[str, int] = {}
        self._asked: dict[str, float] = {}
        self._expected = {settings.reply_topic, settings.dead_letter_topic}

    @staticmethod
    def _options(settings: KafkaSettings) -> ClientOptions:
        return settings.transactional_producer()

    def start(self) -> None:
        """Take the transactional id over: whoever had it is fenced, what it left open is aborted."""
        self._until_done(lambda: self._producer.init_transactions(_STEP_S))

    def missing(self, topics: Collection[str]) -> set[str]:
        """Which of them do not exist, as the brokers say; one that was there is asked for again only after an abort.

        A record to a missing topic would hold its transaction up, until the client no longer expects it to appear; one
        to a topic that was deleted fails the transaction, and no report says which record it was.
        """
        missing: set[str] = set()
        for topic in topics:
            if topic in self._there:
                continue
            try:
                partitions = self._look_up(topic, _APPEARS_S if topic in self._expected else 0.0)
            except KafkaException:  # no answer, nor to what is left: the transaction itself will tell
                break
            if partitions is None:
                missing.add(topic)
            else:
                self._there[topic] = partitions
        self._expected = (self._expected | self._there.keys()) - missing
        return missing

    def lacks(self, topic: str, partition: int) -> bool:
        """Whether a topic that is there has no such partition. It may grow: the brokers are asked again, once a second
        at most.
        """
        known, now = self._there.get(topic), self._clock()
        if known is None or partition < known:
            return False
        if now - self._asked.get(topic, -_ASK_AGAIN_S) >= _ASK_AGAIN_S:
            self._asked[topic] = now
            with suppress(KafkaException):
                known = self._there[topic] = self._look_up(topic, 0.0) or known
        return partition >= known

    def _look_up(self, topic: str, appears_s: float) -> int | None:
        """Its partitions; none if it is not there, also after ``appears_s``: a broker may just have begun."""
        end = self._clock() + appears_s
        while True:
            found = self._producer.list_topics(topic, timeout=_STEP_S).topics[topic]
            if found.error is None or found.error.code() not in TOPIC_MISSING:
                return len(found.partitions)
            if self._clock() >= end or self._give_up():
                return None
            self._serve(lambda: self._producer.poll(_PAUSE_S))

    def begin(self) -> None:
        self._until_done(self._producer.begin_transaction)
        self._begun = True

    def add_offsets(self, offsets: Mapping[Partition, int], membership: bytes) -> None:
        """``membership`` (of ``RequestConsumer``) as it was when the partitions were known to be ours."""
        places = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            # The group refuses them once a rebalance has moved on from there.
            self._producer.send_offsets_to_transaction(places, membership, _STEP_S)
        except (KafkaException, SystemError) as raised:
            # Not called again: after an outage the client may never return from it.
            error = self._survived(raised)
            raise TransactionError(name_of(error), error.str()) from raised

    def commit(self) -> None:
        """To be called when every record is delivered: from here on there is no way back but to wait."""
        self._until_done(lambda: self._producer.commit_transaction(_STEP_S))
        self._begun = False

    def fault(self) -> TransactionError | None:
        """Why the transaction that is open failed, to be asked once one of its records has; none: it cannot be told.

        The records say that they fell with it; a commit is refused with the reason.
        """
        try:
            self._producer.commit_transaction(_STEP_S)
        except (KafkaException, SystemError) as raised:
            try:
                self._survived(raised)
            except TransactionError as reason:
                return reason
            return None
        raise StreamError("the client committed a transaction in which records had failed")

    def abort(self) -> None:
        self._until_done(lambda: self._producer.abort_transaction(_STEP_S))
        self._begun = False
        self._there.clear()

    def abandon(self, budget: float) -> None:
        """Abort what is open, so that readers need not wait for its time-out, and drop the rest."""
        if self._begun:
            try:
                self._producer.abort_transaction(budget)
            except (KafkaException, SystemError) as error:
                raise StreamError(f"the open transaction was not aborted: {error.__cause__ or error}") from error
        super().abandon(budget)

    def _until_done(self, step: Callable[[], Any]) -> None:
        while True:
            try:
                step()
            except (KafkaException, SystemError) as raised:
                error = self._survived(raised)
                self._outage.note(self._clock())
                if not error.retriable() or self._give_up() or self._outage.over_limit(self._clock()):
                    raise StreamError(f"a transaction came to no end: {name_of(error)}: {error.str()}") from raised
            else:
                self._outage.clear()
                return
            self._serve(lambda: self._producer.poll(_PAUSE_S))

    def _survived(self, raised: KafkaException | SystemError) -> KafkaError:
        """The error, if neither the producer nor the transaction is at its end with it."""
        # As SystemError if a delivery callback ran.
        cause = raised if isinstance(raised, KafkaException) else raised.__cause__
        error: KafkaError | None = cause.args[0] if isinstance(cause, KafkaException) else None
        if error is None or is_fatal(error):
            raise StreamError(f"the producer is out for good: {reason_of(cause or raised)}") from raised
        if error.txn_requires_abort():
            raise TransactionError(name_of(error), error.str()) from raised
        return error
