"""The reply thread: encodes answers, sends replies and dead letters, completes a record once all is confirmed."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal

from msgspec import Struct, structs

from consumer.serving.bad_records import BadRecordLimit
from consumer.serving.in_flight import BAD_RECORD, Answer, Denied, InFlight, Outcome, Repeat
from consumer.serving.observer import ReplyTimes, ServingObserver
from consumer.serving.repeats import RepeatCache
from consumer.serving.tracing import RequestTracer
from consumer.stream.errors import StreamError
from consumer.stream.producer import Failure, FailureKind, ReplyProducer
from consumer.stream.settings import KafkaSettings
from consumer.wire.dead_letter import attempt_of, dead_letter
from consumer.wire.headers import reply_headers
from consumer.wire.reply import encode_error, encode_reply, status_of
from engine.errors import RequestError
from engine.request import RecallResult

_IDLE_S = 0.1
_REPORTS_S = 0.005
"""Wait for answers while delivery reports are due: those only move offsets, so some milliseconds are fine."""
_AT_ONCE = 64
"""Most answers that are sent between two looks at what the brokers say."""
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
    """A reply on its way. ``alone``: in a record batch of its own; ``shrunk``: it says too_large."""

    item: InFlight
    topic: str
    value: bytes
    catalog: str | None
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


class ReplyLoop:
    """``confirmed`` is called with the records whose reply and dead letter the broker has acknowledged."""

    def __init__(
        self,
        settings: KafkaSettings,
        confirmed: Callable[[Sequence[InFlight]], None],
        observer: ServingObserver,
        clock: Callable[[], float],
        limit: BadRecordLimit,
        repeats: RepeatCache,
        tracer: RequestTracer | None = None,
    ) -> None:
        self._settings = settings
        self._limit = limit
        self._repeats = repeats
        self._tracer = tracer
        self._confirmed = confirmed
        self._observer = observer
        self._clock = clock
        self._inbox: SimpleQueue[Outcome | Repeat | Denied | Literal["stop"]] = SimpleQueue()
        self._outstanding: Counter[str] = Counter()  # sends without a report, by topic
        self._unreported = 0
        self._finished: list[InFlight] = []
        self._suspects: deque[Sent] = deque()
        self._producer: ReplyProducer[Sent] = ReplyProducer(
            settings, lambda code: observer.client_error("producer", code)
        )

    def put(self, outcome: Outcome | Repeat | Denied) -> None:
        """Hand over what a record came to; from any thread."""
        self._inbox.put(outcome)

    def stop(self) -> None:
        """End the loop after what was put before."""
        self._inbox.put("stop")

    def run(self) -> None:
        """Send until stopped. Raises StreamError for anything that cannot be delivered."""
        while True:
            for job in self._jobs():
                if job == "stop":
                    return
                if isinstance(job, Outcome):
                    self._answer(job)
                elif isinstance(job, Repeat):
                    self._answer_again(job)
                else:
                    job.item.awaiting = 1
                    self._trace(job.item, "reply_topic_denied")
                    self._send_dead_letter(job.item, "reply_topic_denied", job.message, "admit")
            self._collect(0)
            self._isolate()

    def abandon(self, budget: float) -> None:
        """Give unconfirmed sends ``budget`` seconds to leave, then drop them. After ``run`` has ended."""
        self._producer.abandon(budget)

    def _jobs(self) -> list[Outcome | Repeat | Denied | Literal["stop"]]:
        """Those that are there; waits for the first one."""
        jobs = []
        with suppress(Empty):
            jobs.append(self._inbox.get(timeout=_REPORTS_S if self._unreported else _IDLE_S))
            while len(jobs) < _AT_ONCE:
                jobs.append(self._inbox.get_nowait())
        return jobs

    def _answer(self, outcome: Outcome) -> None:
        item, answer, now = outcome.item, outcome.answer, self._clock()
        if not isinstance(answer, RequestError) and now >= item.deadline:
            answer = RequestError("expired", "the result came after the deadline")
            self._observer.expired("reply")
        times = _times(item, answer, now)
        try:
            value = _encode(item, answer, times)
        except Exception as error:
            log.exception("an answer could not be encoded")
            answer = RequestError("internal", f"the answer could not be encoded: {type(error).__name__}")
            value = _encode(item, answer, times)
        code = answer.code if isinstance(answer, RequestError) else None
        bad = code in BAD_RECORD or item.reply_topic is None
        item.awaiting = bad + (item.reply_topic is not None)
        self._trace(item, code or "ok", None if isinstance(answer, RequestError) else answer)
        if isinstance(answer, RequestError) and bad:
            self._observer.bad_record(answer.code)
            self._send_dead_letter(item, answer.code, answer.message, outcome.stage)
        if item.reply_topic is not None:
            self._observer.replied("ok" if code is None else status_of(code), code, times)
            catalog = None if isinstance(answer, RequestError) else answer.catalog
            self._send(ReplySent(item, item.reply_topic, value, catalog))

    def _answer_again(self, repeat: Repeat) -> None:
        item = repeat.item
        item.awaiting = 1
        self._trace(item, "repeat")
        self._observer.repeated()
        self._observer.replied("ok", None, _times(item, None, self._clock()))
        self._send(ReplySent(item, item.reply_topic or "", repeat.value, repeat.catalog))

    def _trace(self, item: InFlight, outcome: str, result: RecallResult | None = None) -> None:
        if self._tracer is not None:
            item.trace = self._tracer.begin(item, outcome, result, self._clock())

    def _send(self, sent: ReplySent) -> None:
        item, source = sent.item, sent.item.record
        request_headers = item.headers
        if item.trace is not None:
            request_headers = structs.replace(request_headers, traceparent=item.trace.traceparent)
        headers = reply_headers(
            request_headers, topic=source.topic, partition=source.partition, offset=source.offset, catalog=sent.catalog
        )
        self._expect_report(sent.topic)
        self._producer.send(
            sent,
            sent.topic,
            key=source.key,
            value=sent.value,
            headers=headers,
            partition=item.headers.reply_partition,
        )

    def _send_dead_letter(self, item: InFlight, reason: str, message: str, stage: str) -> None:
        if attempt_of(item.record.headers) == 1:  # an operator's replay that fails again says nothing new
            self._check_share(reason, message)
        item.dead_lettered = True
        self._observer.dead_letter(reason)
        log.warning("dead letter: %s[%d]@%d: %s: %s", *item.ticket.partition, item.ticket.offset, reason, message)
        topic, most = self._settings.dead_letter_topic, self._settings.max_message_bytes
        self._send_again(DeadLetterSent(item, topic, reason, message, stage, most))

    def _check_share(self, reason: str, message: str) -> None:
        if wrong := self._limit.bad(self._clock()):
            raise StreamError(f"{wrong}; the last: {reason}: {message}")

    def _send_again(self, sent: DeadLetterSent) -> None:
        letter = dead_letter(
            sent.item.record,
            error_class=sent.reason,
            message=sent.message,
            stage=sent.stage,
            group=self._settings.group_id,
            max_bytes=sent.max_bytes,
        )
        self._expect_report(sent.topic)
        self._producer.send(
            sent,
            sent.topic,
            key=letter.key,
            value=letter.value,
            headers=letter.headers,
            partition=None,
        )

    def _expect_report(self, topic: str) -> None:
        self._outstanding[topic] += 1
        self._unreported += 1

    def _collect(self, timeout: float) -> None:
        deliveries = self._producer.poll(timeout)
        now = self._clock()
        for delivery in deliveries:
            self._outstanding[delivery.sent.topic] -= 1
            self._unreported -= 1
            if delivery.failure is None:
                self._delivered(delivery.sent, now)
            elif delivery.failure.of_batch and not delivery.sent.alone:
                self._suspects.append(delivery.sent)
            elif isinstance(delivery.sent, ReplySent):
                self._reply_failed(delivery.sent, delivery.failure)
            else:
                self._dead_letter_failed(delivery.sent, delivery.failure)
        if self._finished:
            finished, self._finished = self._finished, []
            self._confirmed(finished)

    def _isolate(self) -> None:
        """Send again what was refused, each with nothing beside it: only the culprits are refused then."""
        while self._suspects:
            suspect = structs.replace(self._suspects.popleft(), alone=True)
            self._await_reports(suspect.topic)
            if isinstance(suspect, ReplySent):
                self._send(suspect)
            else:
                self._send_again(suspect)
            self._await_reports(suspect.topic)

    def _await_reports(self, topic: str) -> None:
        while self._outstanding[topic]:
            self._collect(_REPORTS_S)

    def _delivered(self, sent: Sent, now: float) -> None:
        if isinstance(sent, ReplySent):
            self._observer.reply_confirmed(now - sent.item.admitted)
            if sent.item.identity is not None and sent.catalog is not None:  # it holds items
                self._repeats.put(sent.item.identity, sent.value, sent.catalog)
        self._settle(sent.item)

    def _reply_failed(self, sent: ReplySent, failure: Failure) -> None:
        if failure.kind == "other":
            raise StreamError(f"a reply to {sent.topic} is undeliverable: {failure.code}: {failure.message}")
        if failure.kind == "too_large" and not sent.shrunk:
            self._send(self._shrunk(sent, failure))
            return
        if sent.item.dead_lettered:  # a bad record that cannot be told so: its dead letter is all that is due
            self._settle(sent.item)
            return
        reason = _DEAD_REASON[failure.kind]
        self._send_dead_letter(sent.item, reason, f"{sent.topic}: {failure.message}", "reply")

    def _shrunk(self, sent: ReplySent, failure: Failure) -> ReplySent:
        self._observer.replied("error", "too_large", _times(sent.item, None, self._clock()))
        message = f"the reply of {len(sent.value)} bytes is too large: {failure.message}"
        value = encode_error(sent.item.addressee, "too_large", message)
        return structs.replace(sent, value=value, catalog=None, shrunk=True)

    def _settle(self, item: InFlight) -> None:
        item.awaiting -= 1
        if item.awaiting == 0:
            if item.trace is not None:
                item.trace.end(self._clock(), dead_lettered=item.dead_lettered)
            self._finished.append(item)

    def _dead_letter_failed(self, sent: DeadLetterSent, failure: Failure) -> None:
        half = sent.max_bytes // 2
        if failure.kind != "too_large" or half < _LEAST_DEAD_LETTER:
            raise StreamError(f"a dead letter is undeliverable: {failure.code}: {failure.message}")
        self._send_again(structs.replace(sent, max_bytes=half))


def _times(item: InFlight, answer: Answer | None, now: float) -> ReplyTimes:
    queue, total = (item.started or now) - item.admitted, now - item.admitted
    if answer is None or isinstance(answer, RequestError):
        return ReplyTimes(queue, 0.0, 0.0, total)
    return ReplyTimes(queue, answer.prefill_ms / 1000, answer.decode_ms / 1000, total)


def _encode(item: InFlight, answer: Answer, times: ReplyTimes) -> bytes:
    queue_ms, total_ms = times.queue * 1000, times.total * 1000
    if isinstance(answer, RequestError):
        return encode_error(item.addressee, answer.code, answer.message, queue_ms=queue_ms, total_ms=total_ms)
    return encode_reply(item.addressee, answer, queue_ms=queue_ms, total_ms=total_ms)
