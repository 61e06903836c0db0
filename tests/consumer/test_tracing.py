"""Spans of requests: whose trace they continue, what they hold, what they cost when nobody asked for them."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from consumer.service.app import tracer_of
from consumer.service.settings import ServiceSettings
from consumer.service.tracing import OpenTelemetryTracer
from engine.errors import RecallstreamError
from tests.consumer.serving_harness import REQUESTS, Harness, harness, now_ms
from tests.consumer.waiting import eventually

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = {"queue", "prefill", "decode", "reply"}


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def tracer(exporter: InMemorySpanExporter) -> OpenTelemetryTracer:
    return OpenTelemetryTracer(SimpleSpanProcessor(exporter), "recallstream", "g")


def traceparent(flags: str = "01") -> dict[str, bytes]:
    return {"traceparent": f"00-{TRACE}-{CALLER}-{flags}".encode()}


def spans_of(exporter: InMemorySpanExporter, count: int) -> dict[str, ReadableSpan]:
    """By name; the root, which ends last, under ``root``."""
    spans = eventually(lambda: exporter.get_finished_spans() if len(exporter.get_finished_spans()) >= count else None)
    assert len(spans) == count
    return {"root" if span.name == f"process {REQUESTS}" else span.name: span for span in spans}


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Trace, span and parent, in hexadecimal."""
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    return format_trace_id(context.trace_id), format_span_id(context.span_id), parent and format_span_id(parent.span_id)


def times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def test_the_stages_of_a_request_continue_the_callers_trace(made: Harness, exporter: InMemorySpanExporter) -> None:
    begin = time.time_ns()
    made.member(tracer=tracer(exporter))
    made.send("r", headers={**traceparent(), "tracestate": b"vendor=1"})
    made.flush()
    (reply,) = made.replies.wait(1)
    spans = spans_of(exporter, 5)
    root = spans.pop("root")
    trace, span, parent = ids(root)
    assert (trace, parent) == (TRACE, CALLER)
    assert set(spans) == STAGES
    assert {ids(stage)[0] for stage in spans.values()} == {TRACE}
    assert {ids(stage)[2] for stage in spans.values()} == {span}
    assert reply.headers["traceparent"] == f"00-{TRACE}-{span}-01".encode()
    assert reply.headers["tracestate"] == b"vendor=1"
    context = root.get_span_context()
    assert context is not None
    assert context.trace_state.to_header() == "vendor=1"

    first, last = times(root)
    assert begin < first <= last <= time.time_ns()
    ordered = [times(spans[name]) for name in ("queue", "prefill", "decode", "reply")]
    assert (ordered[0][0], ordered[-1][1]) == (first, last)
    assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    assert root.attributes is not None
    assert root.attributes["recallstream.outcome"] == "ok"
    assert root.attributes["recallstream.catalog"] == "v1"
    assert root.attributes["recallstream.request_id"] == "r"
    assert root.attributes["messaging.destination.name"] == REQUESTS
    assert root.attributes["messaging.kafka.offset"] == 0
    assert root.resource.attributes["service.name"] == "recallstream"
    assert root.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("headers", [{}, {"traceparent": b"nonsense"}])
def test_without_a_callers_trace_one_begins_here(
    made: Harness, exporter: InMemorySpanExporter, headers: dict[str, bytes]
) -> None:
    made.member(tracer=tracer(exporter))
    made.send("r", headers=headers)
    made.flush()
    (reply,) = made.replies.wait(1)
    trace, span, parent = ids(spans_of(exporter, 5)["root"])
    assert parent is None
    assert reply.headers["traceparent"].decode().startswith(f"00-{trace}-{span}-0")


def test_what_the_caller_does_not_sample_is_not_recorded_but_continued(
    made: Harness, exporter: InMemorySpanExporter
) -> None:
    made.member(tracer=tracer(exporter))
    made.send("r", headers=traceparent("00"))
    made.flush()
    (reply,) = made.replies.wait(1)
    assert re.fullmatch(rf"00-{TRACE}-[0-9a-f]{{16}}-00", reply.headers["traceparent"].decode())
    eventually(lambda: made.committed() == 1)
    assert exporter.get_finished_spans() == ()


def test_a_bad_record_is_an_error_that_ends_with_its_dead_letter(made: Harness, exporter: InMemorySpanExporter) -> None:
    made.member(tracer=tracer(exporter))
    made.send(value=b"\xc1")
    made.flush()
    root = spans_of(exporter, 3)["root"]
    assert root.attributes is not None
    assert root.attributes["recallstream.outcome"] == "bad_request"
    assert root.attributes["recallstream.dead_letter"] is True
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "bad_request")
    exporter.clear()
    made.send("r", headers={"reply-topic": b"denied"})
    made.flush()
    root = spans_of(exporter, 3)["root"]
    assert root.attributes is not None
    assert root.attributes["recallstream.outcome"] == "reply_topic_denied"


def test_expired_requests_and_repeats_have_no_engine_spans(made: Harness, exporter: InMemorySpanExporter) -> None:
    made.member(tracer=tracer(exporter), active_catalog=lambda: "v1")
    made.send("r", deadline_ms=now_ms() - 1)
    made.flush()
    assert set(spans_of(exporter, 3)) == {"root", "queue", "reply"}
    for count in (5, 3):
        exporter.clear()
        made.send("r", headers={"correlation-id": b"c", **traceparent()})
        made.flush()
        spans = spans_of(exporter, count)
        assert (ids(spans["root"])[0], ids(spans["root"])[2]) == (TRACE, CALLER)
    assert spans["root"].attributes is not None
    assert spans["root"].attributes["recallstream.outcome"] == "repeat"


def test_off_is_the_default_and_not_even_imported() -> None:
    settings = ServiceSettings(engine={"model": "m"})
    assert tracer_of(settings) is None
    check = "import sys, consumer.service.app, consumer.serving.service; print('opentelemetry' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    # Not the exit code: an interpreter may crash at its end, under native threads.
    assert said.stdout.strip() == "False", said.stderr


def test_without_the_extra_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "consumer.service.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    settings = ServiceSettings(engine={"model": "m"}, tracing={"enabled": True})
    with pytest.raises(RecallstreamError, match=r"pip install 'recallstream\[tracing\]'"):
        tracer_of(settings)


def exporting_to(endpoint: str) -> OpenTelemetryTracer:
    tracing = {"enabled": True, "endpoint": endpoint, "service_name": "mine"}
    settings = ServiceSettings(engine={"model": "m"}, tracing=tracing)
    made = tracer_of(settings)
    assert made is not None
    return made


def test_spans_reach_a_collector_by_otlp(made: Harness) -> None:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the base class's name
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        exporting = exporting_to(f"http://127.0.0.1:{server.server_port}/v1/traces")
        made.member(tracer=exporting)
        made.send("r", headers=traceparent())
        made.flush()
        eventually(lambda: made.committed() == 1)
        exporting.close()
        server.shutdown()
    (resource,) = ExportTraceServiceRequest.FromString(bodies[0]).resource_spans
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == "mine"
    assert {span.name for span in resource.scope_spans[0].spans} == {f"process {REQUESTS}", *STAGES}


def test_a_dead_collector_does_not_hold_the_end_up(made: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "4")  # seconds; by default 10, which is more than a test needs
    exporting = exporting_to("http://127.0.0.1:9/v1/traces")
    made.member(tracer=exporting)
    made.send("r")
    made.flush()
    made.replies.wait(1)
    eventually(lambda: made.committed() == 1)
    begun = time.monotonic()
    exporting.close()
    assert time.monotonic() - begun < 3.0
    for thread in threading.enumerate():  # they still try again, at random times: not beside the next test
        if thread.name.startswith("Otel") or thread.name.endswith("(shutdown)"):
            thread.join(10)
            assert not thread.is_alive()


def test_the_page_names_the_spans() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in (*STAGES, "recallstream.outcome", "recallstream.dead_letter"):
        assert f"`{name}`" in page
