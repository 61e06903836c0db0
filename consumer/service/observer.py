"""The serving loop's events as metrics, and the last minute of them for the status page."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
        self._lock = Lock()
        self._kept: deque[tuple[float, Sequence[float]]] = deque()
        """When values came, and those that came together."""
        self._count = 0

    def add(self, *values: float) -> None:
        if not values:
            return
        now = self._clock()
        with self._lock:
            self._kept.append((now, values))
            self._count += len(values)
            while self._count - len(self._kept[0][1]) >= RECENT_VALUES:
                self._count -= len(self._kept.popleft()[1])

    def values(self) -> list[float]:
        oldest = self._clock() - RECENT_S
        with self._lock:
            values = [value for when, values in self._kept if when >= oldest for value in values]
        return sorted(values[-RECENT_VALUES:])

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
        self._kept = 0
        self._lock = Lock()
        metrics.before_collect.calls.append(self.flush)
        self.latency_ms = Recent(clock)
        self.batch_requests = Recent(clock)

    def flush(self) -> None:
        """Count what was kept; from any thread."""
        with self._lock:
            replies, self._replies, self._kept = self._replies, [], 0
        for code in chain.from_iterable([each.errors for each in replies]):
            self._metrics.replies.labels(status_of(code)).inc()
            self._metrics.reply_errors.labels(code if code in ERROR_CODES else OTHER).inc()
        self._metrics.replies.labels("ok").inc(sum([len(each.total_ms) for each in replies]))
        self._metrics.in_time.inc(sum([each.in_time for each in replies]))
        latency = self._metrics.latency
        latency.labels("queue").observe_many(_seconds([each.queue_ms for each in replies]))
        latency.labels("prefill").observe_many(_seconds([each.prefill_ms for each in replies]))
        latency.labels("decode").observe_many(_seconds([each.decode_ms for each in replies]))
        latency.labels("total").observe_many(_seconds([each.total_ms for each in replies]))
        latency.labels("confirmed").observe_many(_seconds([each.confirmed_ms for each in replies]))

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

    def replied(self, replies: Replied) -> None:
        with self._lock:
            self._replies.append(replies)
            self._kept += len(replies.confirmed_ms)
        self.latency_ms.add(*replies.total_ms)
        if self._kept >= FLUSH_AT:
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


def _seconds(columns: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    return np.fromiter(chain.from_iterable(columns), np.float64) / 1000
