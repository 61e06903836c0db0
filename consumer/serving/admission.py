"""How much may be read: bounds on count, bytes and span, with hysteresis, and when a full queue pauses partitions."""

from enum import Enum

from consumer.serving.settings import BatchSettings

READ_CHUNK = 64
"""Most records that one turn of the loop reads: it also sweeps deadlines and commits."""


class Flow(Enum):
    """What the intake does next."""

    READ = "read"
    HOLD = "hold"
    """Full for a moment: leave the client's prefetch alone and do not poll."""
    PAUSED = "paused"
    """Full for long: partitions are paused, polling goes on so that the group stays served."""


class AdmissionGate:
    """Closes when a bound is reached, opens again at ``resume_at`` of all of them. ``record_bytes``: largest record."""

    def __init__(self, settings: BatchSettings, record_bytes: int) -> None:
        self._settings = settings
        self._record_bytes = record_bytes
        self._closed_at: float | None = None

    def update(self, count: int, size: int, span: int, now: float) -> Flow:
        """The flow for requests in flight (``count``, ``size`` in bytes) and the longest span of a partition."""
        used = max(
            count / self._settings.max_in_flight,
            size / self._settings.max_in_flight_bytes,
            span / self._settings.max_span,
        )
        if used >= 1:
            self._closed_at = now if self._closed_at is None else self._closed_at
        elif used <= self._settings.resume_at:
            self._closed_at = None
        if self._closed_at is None:
            return Flow.READ
        return Flow.PAUSED if now - self._closed_at >= self._settings.pause_after_s else Flow.HOLD

    def room(self, count: int, size: int) -> int:
        """Records that may be read now: at least one, and no more than the bounds hold even if all are of full size."""
        by_bytes = (self._settings.max_in_flight_bytes - size) // self._record_bytes
        return max(1, min(READ_CHUNK, self._settings.max_in_flight - count, by_bytes))
