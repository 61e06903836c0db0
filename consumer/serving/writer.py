"""From what a record came to, to the reply and the dead letter that say so, and to what is sent if one fails."""

import logging
from collections.abc import Callable, Iterable

from msgspec import Struct, structs

from consumer.serving.bad_records import BadRecordLimit
from consumer.serving.in_flight import BAD_RECORD, Done, InFlight, Job, Outcome, Repeat
from consumer.serving.observer import Replied, ReplyTimes, ServingObserver
from consumer.serving.repeats import Answered, Identity, RepeatCache
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


class ReplySent(Struct, frozen=True, eq=False):
    """A reply on its way, with an error's ``code``. ``alone``: in a record batch of its own; ``shrunk``: it says
    too_large.
    """

    item: InFlight
    topic: str
    value: bytes
    catalog: str | None
    code: ErrorCode | None
    times: ReplyTimes
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

    def write(self, job: Job, came: float) -> list[Sent]:
        """All that is due: a reply, a dead letter, both, or nothing. ``came``: when the record came to it."""
        if isinstance(job, Outcome):
            return self._answer(job, came)
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
        replies: list[Replied] = []
        again: list[tuple[Identity, Answered]] = []
        for sent in sends:
            if isinstance(sent, DeadLetterSent):
                continue
            item, catalog = sent.item, sent.catalog
            has_items = catalog is not None
            replies.append(Replied(sent.code, sent.times, now - item.admitted, has_items and now < item.deadline))
            if catalog is not None and item.identity is not None:
                again.append((item.identity, Answered(sent.value, catalog, now, item.addressee.user_id, item.admitted)))
        self._observer.replied(replies)
        if again:
            self._repeats.put_all(again)

    def finished(self, items: Iterable[InFlight]) -> None:
        """All that was due for these records is delivered."""
        if self._tracer is None:
            return
        now = self._clock()
        for item in items:
            if item.trace is not None:
                item.trace.end(now, dead_lettered=item.dead_lettered)

    def _answer(self, outcome: Outcome, came: float) -> list[Sent]:
        item, answer, now = outcome.item, outcome.answer, self._clock()
        if isinstance(answer, RequestError):
            if answer.code == "expired" and outcome.stage == "admit":
                self._observer.expired("admission")
            return self._refuse(outcome, answer, came, now)
        if now >= item.deadline:
            self._observer.expired("reply")
            return self._refuse(outcome, RequestError("expired", "the result came after the deadline"), came, now)
        times = _times(item, answer, now)
        try:
            value = encode_reply(
                item.addressee,
                answer,
                queue_ms=times.queue * 1000,
                total_ms=times.total * 1000,
                degraded=outcome.degraded,
                age_ms=None if outcome.age_s is None else outcome.age_s * 1000,
            )
        except Exception as error:
            log.exception("an answer could not be encoded")
            fault = RequestError("internal", f"the answer could not be encoded: {type(error).__name__}")
            return self._refuse(outcome, fault, came, now)
        if self._tracer is not None:
            item.trace = self._tracer.begin(item, "ok", answer, came)
        if item.reply_topic is None:
            return []
        if outcome.degraded:
            self._observer.degraded(outcome.degraded)
        return [ReplySent(item, item.reply_topic, value, answer.catalog, None, times)]

    def _refuse(self, outcome: Outcome, error: RequestError, came: float, now: float) -> list[Sent]:
        item, code = outcome.item, error.code
        self._trace(item, code, came)
        sends: list[Sent] = []
        if code in BAD_RECORD or item.reply_topic is None:
            self._observer.bad_record(code)
            sends.append(self._dead_letter(item, code, error.message, outcome.stage))
        if item.reply_topic is not None:
            times = _times(item, None, now)
            value = encode_error(
                item.addressee, code, error.message, queue_ms=times.queue * 1000, total_ms=times.total * 1000
            )
            sends.append(ReplySent(item, item.reply_topic, value, None, code, times))
        return sends

    def _answer_again(self, repeat: Repeat, came: float) -> ReplySent:
        item = repeat.item
        self._trace(item, "repeat", came)
        self._observer.repeated()
        times = _times(item, None, self._clock())
        return ReplySent(item, item.reply_topic or "", repeat.value, repeat.catalog, None, times)

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
        log.warning("dead letter: %s[%d]@%d: %s: %s", *item.ticket.partition, item.ticket.offset, reason, message)
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


def _times(item: InFlight, result: RecallResult | None, now: float) -> ReplyTimes:
    admitted = item.admitted
    queue, total = (item.started or now) - admitted, now - admitted
    if result is None:
        return ReplyTimes(queue, 0.0, 0.0, total)
    return ReplyTimes(queue, result.prefill_ms / 1000, result.decode_ms / 1000, total)
