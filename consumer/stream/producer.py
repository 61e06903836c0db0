"""The producer of replies and dead letters: what was sent, and what the broker made of it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Generic, Literal, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from consumer.stream.absent import Absent
from consumer.stream.errors import StreamError, is_fatal, name_of, reason_of
from consumer.stream.settings import ClientOptions, KafkaSettings

FailureKind = Literal["too_large", "refused", "topic_unknown", "topic_denied", "partition_unknown", "other"]

_KINDS: dict[int, FailureKind] = {
    KafkaError.MSG_SIZE_TOO_LARGE: "too_large",
    KafkaError.RECORD_LIST_TOO_LARGE: "too_large",
    KafkaError.INVALID_RECORD: "refused",
    KafkaError._INVALID_DIFFERENT_RECORD: "refused",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "topic_unknown",
    KafkaError._UNKNOWN_TOPIC: "topic_unknown",
    KafkaError.TOPIC_EXCEPTION: "topic_unknown",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic_denied",
    KafkaError._UNKNOWN_PARTITION: "partition_unknown",
}
_ANYWHERE = -1
_FULL_QUEUE_S = 0.05

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a record was not written. ``refused``: as the topic is set, for example a null key where it is compacted.

    ``local``: by this client, before it stood in a record batch.
    """

    kind: FailureKind
    code: str
    message: str
    local: bool

    @property
    def of_batch(self) -> bool:
        """Whether the fault may be a neighbour's: a broker refuses whole record batches."""
        return self.kind in ("too_large", "refused") and not self.local


@dataclass(slots=True)
class Reports(Generic[T]):
    """The ends of sends: written and acknowledged, or not."""

    delivered: list[T] = field(default_factory=list)
    failed: list[tuple[T, Failure]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.delivered) + len(self.failed)


class ReplyProducer(Generic[T]):
    """Idempotent, acknowledged by all replicas. One thread sends and polls. Raises StreamError when it is out."""

    def __init__(self, settings: KafkaSettings, client_error: Callable[[str], None]) -> None:
        self._client_error = client_error
        self._reports: Reports[T] = Reports()
        self._absent: Absent[Failure] = Absent()
        self._fatal: KafkaError | None = None

        def reported(sent: T, error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self._reports.delivered.append(sent)
            else:
                self._reports.failed.append((sent, _failure(error, local=False)))

        # A method of each thing sent: nothing that calls back is made sooner.
        self._reported = reported
        try:
            self._producer = Producer({**self._options(settings), "error_cb": self._on_error}, logger=log)
        except KafkaException as error:
            raise StreamError(f"kafka: {reason_of(error)}") from error

    @staticmethod
    def _options(settings: KafkaSettings) -> ClientOptions:
        return settings.producer()

    def send(
        self,
        sent: T,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[Any],
        partition: int | None,
    ) -> None:
        """Hand a record over; ``poll`` returns ``sent`` with what became of it. A full queue makes this wait.

        ``headers``: pairs of a name and bytes or None.
        """
        where = _ANYWHERE if partition is None else partition
        if absent := self._absent.failure(topic, where):
            self._reports.failed.append((sent, absent))
            return
        while True:
            try:
                # All by position, the callback and 0 for "now" too: names would cost half as much again.
                self._producer.produce(topic, value, key, where, MethodType(self._reported, sent), None, 0, headers)
            except BufferError:
                self._serve(lambda: self._producer.poll(_FULL_QUEUE_S))
                continue
            except KafkaException as error:
                if is_fatal(error.args[0]):
                    raise StreamError(f"the producer is out for good: {reason_of(error)}") from error
                self._reports.failed.append((sent, self._refused(topic, where, error.args[0])))
            return

    def _refused(self, topic: str, where: int, error: KafkaError) -> Failure:
        failure = _failure(error, local=True)
        if failure.kind in ("topic_unknown", "partition_unknown"):
            self._absent.note(topic, where if failure.kind == "partition_unknown" else _ANYWHERE, failure)
        return failure

    def poll(self, timeout: float) -> Reports[T]:
        """Have what was handed over sent, and wait up to ``timeout`` seconds for it; what was reported by then.

        One request of records is under way to a partition at a time; while further ones wait for that, the client's
        thread spins. So hand over all there is, then come here.
        """
        self._serve(lambda: self._producer.flush(timeout) if timeout else self._producer.poll(0))
        reports, self._reports = self._reports, Reports()
        return reports

    def abandon(self, budget: float) -> None:
        """Give what is left ``budget`` seconds to leave, then drop it: closing a producer would wait without end."""
        deadline = time.monotonic() + budget
        self._serve(lambda: self._producer.flush(max(0.0, deadline - time.monotonic())))
        self._producer.purge()
        self._serve(lambda: self._producer.flush(0))

    def _serve(self, call: Callable[[], Any]) -> None:
        # A fatal error is raised once, from poll or flush, and as SystemError if a delivery callback ran.
        try:
            call()
        except (KafkaException, SystemError) as error:
            raise StreamError(f"the producer is out for good: {error.__cause__ or error}") from error
        if self._fatal is not None:
            raise StreamError(f"the producer is out for good: {name_of(self._fatal)}: {self._fatal.str()}")

    def _on_error(self, error: KafkaError) -> None:
        self._client_error(name_of(error))
        if is_fatal(error):
            self._fatal = error


def _failure(error: KafkaError, *, local: bool) -> Failure:
    return Failure(_KINDS.get(error.code(), "other"), name_of(error), error.str(), local)
