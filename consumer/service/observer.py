"""The serving loop's events as metrics, and the last minute of them for the status page."""

import math
import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Literal

from consumer.service.metrics import DEAD_LETTER_REASONS, ERROR_CODES, OTHER, Metrics
from consumer.serving.observer import CloseReason, Rebalance, ReplyTimes, Stage
from consumer.wire.reply import Status

RECENT_S = 60.0
RECENT_VALUES = 4096


class Recent:
    """Values of the last ``RECENT_S`` seconds, at most ``RECENT_VALUES`` of them. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._values: deque[tuple[float, float]] = deque(maxlen=RECENT_VALUES)

    def add(self, value: float) -> None:
        with self._lock:
            self._values.append((self._clock(), value))

    def values(self) -> list[float]:
        oldest = self._clock() - RECENT_S
        with self._lock:
            return sorted(value for when, value in self._values if when >= oldest)

    def mean(self) -> float | None:
        values = self.values()
        return math.fsum(values) / len(values) if values else None

    def percentile(self, percent: float) -> float | None:
        """The smallest value that ``percent`` of the values do not exceed; none without values."""
        values = self.values()
        return values[max(0, math.ceil(len(values) * percent / 100) - 1)] if values else None


class MetricsObserver:
    """Implements ``ServingObserver``."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        # Of every reply; looking a label up costs more than counting.
        self._ok = metrics.replies.labels("ok")
        self._queue, self._prefill, self._decode, self._total, self._confirmed = (
            metrics.latency.labels(phase) for phase in ("queue", "prefill", "decode", "total", "confirmed")
        )
        self.latency_s = Recent(clock)
        self.batch_requests = Recent(clock)

    def received(self, records: int, size: int) -> None:
        self._metrics.records.inc(records)
        self._metrics.record_bytes.inc(size)

    def bad_record(self, code: str) -> None:
        self._metrics.bad_records.labels(code if code in ERROR_CODES else OTHER).inc()

    def clock_skew(self, seconds: float) -> None:
        self._metrics.clock_skew.set(seconds)

    def batch_closed(self, requests: int, tokens: int, reason: CloseReason) -> None:
        self._metrics.batches.labels(reason).inc()
        self._metrics.batch_requests.observe(requests)
        self._metrics.batch_tokens.observe(tokens)
        self.batch_requests.add(requests)

    def batch_finished(self, seconds: float) -> None:
        self._metrics.batch_seconds.observe(seconds)

    def batch_failed(self, requests: int) -> None:
        self._metrics.failed_batches.inc()

    def expired(self, stage: Stage) -> None:
        self._metrics.expired.labels(stage).inc()

    def replied(self, status: Status, code: str | None, times: ReplyTimes) -> None:
        if code is not None:
            self._metrics.reply_errors.labels(code if code in ERROR_CODES else OTHER).inc()
        if status != "ok":
            self._metrics.replies.labels(status).inc()
            return
        self._ok.inc()
        self._queue.observe(times.queue)
        self._prefill.observe(times.prefill)
        self._decode.observe(times.decode)
        self._total.observe(times.total)
        self.latency_s.add(times.total)

    def repeated(self) -> None:
        self._metrics.repeats.inc()

    def reply_confirmed(self, seconds: float) -> None:
        self._confirmed.observe(seconds)

    def dead_letter(self, reason: str) -> None:
        self._metrics.dead_letters.labels(reason if reason in DEAD_LETTER_REASONS else OTHER).inc()

    def late_result(self) -> None:
        self._metrics.late_results.inc()

    def committed(self, ok: bool) -> None:
        self._metrics.commits.labels("ok" if ok else "failed").inc()

    def rebalanced(self, kind: Rebalance, partitions: int) -> None:
        self._metrics.rebalances.labels(kind).inc()

    def offset_reset(self, skipped: int) -> None:
        self._metrics.skipped.inc(skipped)

    def paused(self, seconds: float) -> None:
        self._metrics.paused_seconds.inc(seconds)

    def client_error(self, client: Literal["consumer", "producer"], code: str) -> None:
        self._metrics.client_errors.labels(client).inc()
