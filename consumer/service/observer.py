"""The serving loop's events as metrics, and the last minute of them for the status page."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Literal

from consumer.service.metrics import DEAD_LETTER_REASONS, ERROR_CODES, OTHER, Metrics
from consumer.serving.observer import CloseReason, Reason, Rebalance, Replied, Stage
from consumer.wire.reply import status_of

RECENT_S = 60.0
RECENT_VALUES = 4096
FLUSH_AT = 1024
"""Replies that are kept before they are counted."""


class Recent:
    """Values of the last ``RECENT_S`` seconds, at most ``RECENT_VALUES`` of them. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: deque[tuple[float, float]] = deque(maxlen=RECENT_VALUES)

    def add(self, *values: float) -> None:
        now = self._clock()
        self._values.extend([(now, value) for value in values])

    def values(self) -> list[float]:
        oldest = self._clock() - RECENT_S
        return sorted(value for when, value in self._values.copy() if when >= oldest)

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
        # Replies are kept and counted by the thousand, or when somebody looks.
        self._replies: list[Replied] = []
        self._lock = Lock()
        metrics.before_collect.calls.append(self.flush)
        self.latency_s = Recent(clock)
        self.batch_requests = Recent(clock)

    def flush(self) -> None:
        """Count what was kept; from any thread."""
        with self._lock:
            replies, self._replies = self._replies, []
        for code in [each.code for each in replies if each.code is not None]:
            self._metrics.replies.labels(status_of(code)).inc()
            self._metrics.reply_errors.labels(code if code in ERROR_CODES else OTHER).inc()
        latency, ok = self._metrics.latency, [each.times for each in replies if each.code is None]
        self._metrics.replies.labels("ok").inc(len(ok))
        self._metrics.in_time.inc(sum([each.in_time for each in replies]))
        latency.labels("queue").observe_many([times.queue for times in ok])
        latency.labels("prefill").observe_many([times.prefill for times in ok])
        latency.labels("decode").observe_many([times.decode for times in ok])
        latency.labels("total").observe_many([times.total for times in ok])
        latency.labels("confirmed").observe_many([each.confirmed for each in replies])

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

    def batch_finished(self, seconds: float, expected: float) -> None:
        self._metrics.batch_seconds.observe(seconds)
        if seconds > 0:
            self._metrics.batch_error.observe(abs(expected - seconds) / seconds)

    def batch_failed(self, requests: int) -> None:
        self._metrics.failed_batches.inc()

    def coalesced(self, requests: int) -> None:
        self._metrics.coalesced.inc(requests)

    def turned_away(self, reason: Reason) -> None:
        self._metrics.turned_away.labels(reason).inc()

    def degraded(self, steps: Sequence[str]) -> None:
        for step in steps:
            self._metrics.degraded.labels(step).inc()

    def expired(self, stage: Stage) -> None:
        self._metrics.expired.labels(stage).inc()

    def replied(self, replies: Sequence[Replied]) -> None:
        with self._lock:
            self._replies += replies
            kept = len(self._replies)
        self.latency_s.add(*[each.times.total for each in replies if each.code is None])
        if kept >= FLUSH_AT:
            self.flush()

    def repeated(self) -> None:
        self._metrics.repeats.inc()

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
