"""From what a record came to, to the reply and the dead letter that say so, and to what is sent if one fails."""

import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, structs

from consumer.serving.bad_records import BadRecordLimit
from consumer.serving.in_flight import BAD_RECORD, Done, InFlight, Job, Outcome, Repeat
from consumer.serving.observer import Replied, ServingObserver
from consumer.serving.repeats import KeptReply, RepeatCache
from consumer.serving.tracing import RequestTracer
from consumer.stream.errors import StreamError
from consumer.stream.producer import Failure, FailureKind, ReplyProducer
from consumer.stream.settings import KafkaSettings
from consumer.wire.dead_letter import attempt_of, dead_letter
from consumer.wire.headers import reply_headers
from consumer.wire.reply import encode_error, encode_reply
from engine.errors import ErrorCode, RequestError
from engine.request import RecallResult

_LEAST_DEAD_LETTER = 1_024

_DEAD_REASON: dict[FailureKind, str] = {
    "topic_unknown": "reply_topic_unknown",
    "topic_denied": "reply_topic_denied",
    "partition_unknown": "reply_partition_unknown",
    "too_large": "reply_too_large",
    "refused": "reply_refused",
}

log = logging.getLogger(__name__)


class ReplySent(Struct, frozen=True, eq=False, gc=False):
    """A reply on its way, with an error's ``code``, and times as ``Replied`` has them. ``alone``: in a record batch of
    its own; ``shrunk``: it says too_large.
    """

    item: InFlight
    topic: str
    value: bytes
    catalog: str | None
    code: ErrorCode | None
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    total_ms: float
    alone: bool = False
    shrunk: bool = False


class DeadLetterSent(Struct, frozen=True, eq=False):
    """A dead letter on its way, built to fit ``max_bytes``. ``alone``: in a record batch of its own."""

    item: InFlight
    topic: str
    reason: str
    message: str
    stage: str
    max_bytes: int
    alone: bool = False


Sent = ReplySent | DeadLetterSent


class ReplyWriter:
    """Belongs to the reply thread. Raises StreamError where the process must end: too many bad records, no way out."""

    def __init__(
        self,
        settings: KafkaSettings,
        observer: ServingObserver,
        clock: Callable[[], float],
        limit: BadRecordLimit,
        repeats: RepeatCache,
        tracer: RequestTracer | None = None,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._limit = limit
        self._repeats = repeats
        self._tracer = tracer

    def write(self, job: Job, came: float) -> Sequence[Sent]:
        """All that is due: a reply, a dead letter, both, or nothing. ``came``: when the record came to it."""
        if isinstance(job, Outcome):
            if isinstance(job.answer, RecallResult):
                return self._answer(job, job.answer, came)
            if job.answer.code == "expired" and job.stage == "admit":
                self._observer.expired("admission")
            return self._refuse(job, job.answer, came)
        if isinstance(job, Repeat):
            return [self._answer_again(job, came)]
        if isinstance(job, Done):
            self._trace(job.item, "event", came)
            return []
        self._trace(job.item, "reply_topic_denied", came)
        return [self._dead_letter(job.item, "reply_topic_denied", job.message, "admit")]

    def send(self, sends: Iterable[Sent], producer: ReplyProducer[Sent]) -> None:
        """Hand them to the producer."""
        for sent in sends:
            if isinstance(sent, ReplySent):
                item, source = sent.item, sent.item.record
                request = item.headers
                if item.trace is not None:
                    request = structs.replace(request, traceparent=item.trace.traceparent)
                headers = reply_headers(request, source.topic, source.partition, source.offset, sent.catalog)
                producer.send(sent, sent.topic, source.key, sent.value, headers, request.reply_partition)
            else:
                self._send_dead_letter(sent, producer)

    def instead(self, sent: Sent, failure: Failure) -> Sent | None:
        """What is due in the place of a send that failed; None: nothing, its record has a dead letter already."""
        if failure.of_batch and not sent.alone:
            return structs.replace(sent, alone=True)
        if isinstance(sent, DeadLetterSent):
            return self._cut(sent, failure)
        if failure.kind == "other":
            raise StreamError(f"a reply to {sent.topic} is undeliverable: {failure.code}: {failure.message}")
        if failure.kind == "too_large" and not sent.shrunk:
            return self._shrunk(sent, failure)
        if sent.item.dead_lettered:  # a bad record that cannot be told so: its dead letter is all that is due
            return None
        reason = _DEAD_REASON[failure.kind]
        return self._dead_letter(sent.item, reason, f"{sent.topic}: {failure.message}", "reply")

    def delivered(self, sends: Iterable[Sent], now: float) -> None:
        """The broker has them, and nothing can take them back."""
        replies = [sent for sent in sends if isinstance(sent, ReplySent)]
        if not replies:
            return
        served = [sent for sent in replies if sent.code is None]
        self._observer.replied(
            Replied(
                [sent.queue_ms for sent in served],
                [sent.prefill_ms for sent in served],
                [sent.decode_ms for sent in served],
                [sent.total_ms for sent in served],
                [(now - sent.item.admitted) * 1000 for sent in replies],
                sum([now < sent.item.deadline for sent in served]),
                [sent.code for sent in replies if sent.code is not None],
            )
        )
        self._repeats.put_all(
            [
                (item.identity, KeptReply(sent.value, sent.catalog, now, item.addressee.user_id, item.admitted))
                for sent in served
                if sent.catalog is not None and (item := sent.item).identity is not None
            ]
        )

    def finished(self, items: Iterable[InFlight]) -> None:
        """All that was due for these records is delivered."""
        if self._tracer is None:
            return
        now = self._clock()
        for item in items:
            if item.trace is not None:
                item.trace.end(now, dead_lettered=item.dead_lettered)

    def _answer(self, outcome: Outcome, result: RecallResult, came: float) -> Sequence[Sent]:
        item, now, age_s = outcome.item, self._clock(), outcome.age_s
        if now >= item.deadline:
            self._observer.expired("reply")
            return self._refuse(outcome, RequestError("expired", "the result came after the deadline"), came)
        queue_ms, total_ms = _times_ms(item, now)
        age_ms = None if age_s is None else age_s * 1000
        try:
            value = encode_reply(item.addressee, result, queue_ms, total_ms, outcome.degraded, age_ms)
        except Exception as error:
            log.exception("an answer could not be encoded")
            fault = RequestError("internal", f"the answer could not be encoded: {type(error).__name__}")
            return self._refuse(outcome, fault, came)
        if self._tracer is not None:
            item.trace = self._tracer.begin(item, "ok", result, came)
        topic = item.reply_topic
        if topic is None:
            return ()
        if outcome.degraded:
            self._observer.degraded(outcome.degraded)
        prefill_ms, decode_ms = result.prefill_ms, result.decode_ms
        return (ReplySent(item, topic, value, result.catalog, None, queue_ms, prefill_ms, decode_ms, total_ms),)

    def _refuse(self, outcome: Outcome, error: RequestError, came: float) -> Sequence[Sent]:
        item, code = outcome.item, error.code
        self._trace(item, code, came)
        sends: list[Sent] = []
        if code in BAD_RECORD or item.reply_topic is None:
            self._observer.bad_record(code)
            sends.append(self._dead_letter(item, code, error.message, outcome.stage))
        if item.reply_topic is not None:
            queue_ms, total_ms = _times_ms(item, self._clock())
            value = encode_error(item.addressee, code, error.message, queue_ms=queue_ms, total_ms=total_ms)
            sends.append(ReplySent(item, item.reply_topic, value, None, code, queue_ms, 0.0, 0.0, total_ms))
        return sends

    def _answer_again(self, repeat: Repeat, came: float) -> ReplySent:
        item = repeat.item
        self._trace(item, "repeat", came)
        self._observer.repeated()
        queue_ms, total_ms = _times_ms(item, self._clock())
        topic = item.reply_topic or ""
        return ReplySent(item, topic, repeat.value, repeat.catalog, None, queue_ms, 0.0, 0.0, total_ms)

    def _trace(self, item: InFlight, outcome: str, came: float) -> None:
        if self._tracer is not None:
            item.trace = self._tracer.begin(item, outcome, None, came)

    def _send_dead_letter(self, sent: DeadLetterSent, producer: ReplyProducer[Sent]) -> None:
        letter = dead_letter(
            sent.item.record,
            error_class=sent.reason,
            message=sent.message,
            stage=sent.stage,
            group=self._settings.group_id,
            max_bytes=sent.max_bytes,
        )
        producer.send(sent, sent.topic, letter.key, letter.value, letter.headers, None)

    def _dead_letter(self, item: InFlight, reason: str, message: str, stage: str) -> DeadLetterSent:
        self._check_share(item, reason, message)
        item.dead_lettered = True
        self._observer.dead_letter(reason)
        log.warning("dead letter: %s[%d]@%d: %s: %s", *item.ownership.partition, item.record.offset, reason, message)
        topic, most = self._settings.dead_letter_topic, self._settings.max_message_bytes
        return DeadLetterSent(item, topic, reason, message, stage, most)

    def _check_share(self, item: InFlight, reason: str, message: str) -> None:
        if wrong := self._limit.bad(self._clock(), replay=attempt_of(item.record.headers) > 1):
            raise StreamError(f"{wrong}; the last: {reason}: {message}")

    def _shrunk(self, sent: ReplySent, failure: Failure) -> ReplySent:
        message = f"the reply of {len(sent.value)} bytes is too large: {failure.message}"
        value = encode_error(sent.item.addressee, "too_large", message)
        return structs.replace(sent, value=value, catalog=None, code="too_large", shrunk=True)

    def _cut(self, sent: DeadLetterSent, failure: Failure) -> DeadLetterSent:
        half = sent.max_bytes // 2
        if failure.kind != "too_large" or half < _LEAST_DEAD_LETTER:
            raise StreamError(f"a dead letter is undeliverable: {failure.code}: {failure.message}")
        return structs.replace(sent, max_bytes=half)


def _times_ms(item: InFlight, now: float) -> tuple[float, float]:
    """How long it waited, and took in all."""
    admitted, started = item.admitted, item.started
    return ((started or now) - admitted) * 1000, (now - admitted) * 1000
