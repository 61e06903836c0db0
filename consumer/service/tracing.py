"""OpenTelemetry spans of every record: queue, prefill, decode, reply, below one that continues the caller's trace."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from consumer.service.settings import TracingSettings
from consumer.wire.headers import TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from consumer.serving.in_flight import InFlight
    from engine.request import RecallResult

_CLOSE_S: Final = 2.0
_NS: Final = 1_000_000_000
_PROPAGATOR: Final = TraceContextTextMapPropagator()
GOOD: Final = frozenset({"ok", "repeat"})


class OpenTelemetryTracer:
    """Implements ``serving.tracing.RequestTracer``; spans go to ``processor``.

    Spans are made when their ends are known, with the times that were measured, so nothing runs while a request waits.
    Sampling, resource attributes and the rest follow OpenTelemetry's own environment variables.
    """

    def __init__(
        self, processor: SpanProcessor, service_name: str, group: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service_name}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("recallstream")
        self._group = group
        self._clock = clock

    @classmethod
    def exporting(cls, settings: TracingSettings, group: str) -> Self:
        """Send spans by OTLP over HTTP, in the background; what a collector does not take in time is dropped."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)  # it warns at every attempt
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint)), settings.service_name, group)

    def begin(self, item: "InFlight", outcome: str, result: "RecallResult | None", now: float) -> "_RequestTrace":
        wall_ns = time.time_ns() - round(self._clock() * _NS)

        def at(seconds: float) -> int:
            return wall_ns + round(seconds * _NS)

        caller = item.headers.traceparent
        state = item.headers.tracestate or b""
        carrier = {TRACEPARENT: caller.decode(), TRACESTATE: state.decode()} if caller else None
        parent = None if carrier is None else _PROPAGATOR.extract(carrier)
        root = self._tracer.start_span(
            f"process {item.record.topic}",
            parent,
            SpanKind.CONSUMER,
            self._attributes(item, outcome, result),
            start_time=at(item.admitted),
        )
        if outcome not in GOOD:
            root.set_status(Status(StatusCode.ERROR, outcome))
        trace = _RequestTrace(self._tracer, root, at(now), at)
        if not root.is_recording():
            return trace
        taken = item.started if item.started is not None else now
        trace.stage("queue", at(item.admitted), at(taken))
        if result is not None:
            decoding = max(taken, now - result.decode_ms / 1000)
            prefilling = max(taken, decoding - result.prefill_ms / 1000)
            trace.stage("prefill", at(prefilling), at(decoding))
            trace.stage("decode", at(decoding), at(now))
        return trace

    def close(self) -> None:
        """Send what is left, but never hold the process up for long: the SDK's own time-outs are not kept."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    def _attributes(self, item: "InFlight", outcome: str, result: "RecallResult | None") -> "dict[str, AttributeValue]":
        record = item.record
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "messaging.consumer.group.name": self._group,
            "messaging.message.body.size": len(record.value or b""),
            "recallstream.outcome": outcome,
        }
        if item.addressee.request_id is not None:
            attributes["recallstream.request_id"] = item.addressee.request_id
        if result is not None:
            attributes |= {
                "recallstream.catalog": result.catalog,
                "recallstream.model": result.model,
                "recallstream.items": len(result.items),
                "recallstream.context_tokens": result.context_tokens,
                "recallstream.beam_widths": result.beam_widths,
            }
        return attributes


class _RequestTrace:
    def __init__(self, tracer: Tracer, root: Span, answered_ns: int, at: Callable[[float], int]) -> None:
        self._tracer = tracer
        self._root = root
        self._context = set_span_in_context(root)
        self._answered_ns = answered_ns
        self._at = at

    @property
    def traceparent(self) -> bytes | None:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self._context)
        return carrier[TRACEPARENT].encode() if TRACEPARENT in carrier else None

    def stage(self, name: str, begin_ns: int, end_ns: int) -> None:
        self._tracer.start_span(name, self._context, start_time=begin_ns).end(end_ns)

    def end(self, now: float, *, dead_lettered: bool) -> None:
        if self._root.is_recording():
            self._root.set_attribute("recallstream.dead_letter", dead_lettered)
            self.stage("reply", self._answered_ns, self._at(now))
        self._root.end(self._at(now))
