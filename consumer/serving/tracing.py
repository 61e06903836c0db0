"""What the serving loop asks of a tracer; without one it asks nothing. Called from the reply thread only."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from consumer.serving.in_flight import InFlight
    from engine.request import RecallResult


class RequestTrace(Protocol):
    """The span of one record, from its admission to the confirmation of all that it causes."""

    @property
    def traceparent(self) -> bytes | None:
        """Of this span, for the reply's header; none if there is nothing to continue."""

    def end(self, now: float, *, dead_lettered: bool) -> None:
        """All is confirmed; ``now`` in seconds of the monotonic clock."""


class RequestTracer(Protocol):
    """``consumer.service.tracing.OpenTelemetryTracer``."""

    def begin(self, item: "InFlight", outcome: str, result: "RecallResult | None", now: float) -> RequestTrace:
        """An answer is there: ``ok``, ``repeat``, or an error code or reason. The earlier spans end with it."""
