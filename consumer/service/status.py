"""What this process says of itself: faults, readiness, metrics and the status document."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol, get_args

from prometheus_client import CollectorRegistry, Counter

from catalog_sync.state import WatcherSnapshot
from consumer.service.metrics import Metrics
from consumer.service.observer import MetricsObserver
from consumer.service.progress import PartitionState, StallDetector
from consumer.service.settings import ServiceSettings, redacted
from consumer.serving.histories import HistoriesSnapshot
from consumer.serving.load_settings import Step
from consumer.serving.observer import Reason
from consumer.serving.snapshot import ServingSnapshot
from consumer.version import recallstream_version
from consumer.wire.reply import Status


class EngineView(Protocol):
    @property
    def device(self) -> object: ...
    def stats(self) -> dict[str, float]: ...


class WatcherView(Protocol):
    def snapshot(self) -> WatcherSnapshot: ...


class ServingView(Protocol):
    def snapshot(self) -> ServingSnapshot: ...


class FleetLook(Protocol):
    def look(self) -> Mapping[str, Any]: ...


class ServiceStatus:
    """Grows with the process: ``engine``, ``watcher``, ``fleet`` and ``serving`` are set when they exist.

    ``starting`` says what the start is at, none once it is done. Read from the HTTP thread.
    """

    def __init__(self, settings: ServiceSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.metrics = Metrics()
        self.observer = MetricsObserver(self.metrics, clock)
        self.starting: str | None = "the model is loading"
        self.model: str | None = None
        self.engine: EngineView | None = None
        self.watcher: WatcherView | None = None
        self.fleet: FleetLook | None = None
        self.serving: ServingView | None = None
        self._settings = settings
        self._shown_settings = redacted(settings)
        self._clock = clock
        self._started = clock()
        self._stalls = StallDetector(settings.http.stalled_after_s, clock)
        self._last_refusal: dict[str, str | None] | None = None
        self.metrics.start_time.set(time.time())

    @property
    def registry(self) -> CollectorRegistry:
        return self.metrics.registry

    def faults(self) -> tuple[str, ...]:
        if self.serving is None:
            return ()
        serving = self.serving.snapshot()
        faults = [f"failed: {serving.failure}"] if serving.failure else []
        if serving.tick_age > self._settings.http.stalled_after_s:
            faults.append(f"the intake loop has not turned for {serving.tick_age:.0f} s")
        faults += [f"partition {number} of {topic} stands still" for topic, number in self._stalled(serving)]
        return tuple(faults)

    def unready(self) -> tuple[str, ...]:
        reasons = [self.starting] if self.starting else []
        if self.serving:
            reasons += self.serving.snapshot().not_ready
        if self.watcher and (watcher := self.watcher.snapshot()).active is None:
            found = ["no catalog is active"]
            found += [f"{watcher.target} is refused"] if watcher.state in ("refused", "quarantined") else []
            reasons.append(": ".join(found + ([watcher.error] if watcher.error else [])))
        return tuple(reasons)

    def refresh(self) -> None:
        metrics = self.metrics
        metrics.ready.set(not self.unready())
        metrics.build.clear()
        device = str(self.engine.device) if self.engine else ""
        metrics.build.labels(recallstream_version(), self.model or "", device).set(1)
        if self.engine:
            for figure, value in self.engine.stats().items():
                metrics.pool.labels(figure).set(value)
        if self.watcher:
            self._refresh_catalog(self.watcher.snapshot())
        if self.serving:
            self._refresh_serving(self.serving.snapshot())

    def status(self) -> Mapping[str, Any]:
        reasons = self.unready()
        latency, batches = self.observer.latency_ms, self.observer.batch_requests
        max_requests, mean = self._settings.batch.max_requests, batches.mean()
        return {
            "service": {
                "version": recallstream_version(),
                "instance": self._settings.catalog.instance,
                "ready": not reasons,
                "reasons": reasons,
                "faults": self.faults(),
                "uptime_s": self._clock() - self._started,
                "model": self.model,
                "device": str(self.engine.device) if self.engine else None,
            },
            "stream": self._stream(),
            "replies": {status: self.metrics.count("replies_total", status=status) for status in get_args(Status)},
            "batch": {
                "requests": mean,
                "max_requests": max_requests,
                "fill": None if mean is None else mean / max_requests,
            },
            "load": self._load(),
            "latency_ms": {name: latency.percentile(at) for name, at in (("p50", 50), ("p99", 99))},
            "catalog": self._catalog(),
            "histories": asdict(self.serving.snapshot().histories if self.serving else HistoriesSnapshot()),
            "engine": self.engine.stats() if self.engine else {},
            "settings": self._shown_settings,
        }

    def catalog(self) -> Mapping[str, Any]:
        """``here``: this process's own words; ``fleet``: what Redis says, none before there is a model."""
        return {
            "instance": self._settings.catalog.instance,
            "here": self._catalog(),
            "fleet": self.fleet.look() if self.fleet else None,
        }

    def _stalled(self, serving: ServingSnapshot) -> tuple[tuple[str, int], ...]:
        return self._stalls.observe(
            PartitionState(p.topic, p.partition, -1 if p.committed is None else p.committed, p.lag)
            for p in serving.partitions
        )

    def _refresh_catalog(self, watcher: WatcherSnapshot) -> None:
        metrics = self.metrics
        metrics.catalog.clear()
        metrics.catalog.labels("active", watcher.active or "").set(1)
        metrics.catalog.labels("previous", watcher.previous or "").set(1)
        metrics.catalog_generation.set(watcher.generation)
        metrics.catalog_staleness.set(watcher.staleness_seconds)
        metrics.catalog_bytes.set(watcher.resident_bytes)
        metrics.catalog_condemned.set(len(watcher.condemned))
        metrics.catalog_pinned.set(watcher.pinned)
        _set(metrics.catalog_activations, watcher.activated)
        _set(metrics.catalog_rollbacks, watcher.rolled_back)
        _set(metrics.catalog_polls, watcher.polls)
        _set(metrics.catalog_notices, watcher.notices)
        _set(metrics.catalog_reconnects, watcher.reconnects)
        for reason, count in watcher.refused.items():
            _set(metrics.catalog_refusals.labels(reason), count)

    def _refresh_serving(self, serving: ServingSnapshot) -> None:
        metrics = self.metrics
        metrics.lag.clear()
        metrics.lag_seconds.clear()
        for partition in serving.partitions:
            place = partition.topic, partition.partition
            if partition.lag is not None:
                metrics.lag.labels(*place).set(partition.lag)
            metrics.lag_seconds.labels(*place).set(partition.lag_seconds)
        metrics.group_protocol.clear()
        if serving.group.protocol is not None:
            metrics.group_protocol.labels(serving.group.protocol).set(1)
        metrics.group_config_refused.set(serving.group.refused is not None)
        metrics.partitions.set(len(serving.partitions))
        metrics.stalled.set(len(self._stalled(serving)))
        metrics.in_flight.set(serving.in_flight)
        metrics.in_flight_bytes.set(serving.in_flight_bytes)
        metrics.queued.set(serving.queued)
        metrics.queued_tokens.set(serving.queued_tokens)
        metrics.paused.set(serving.paused)
        self._refresh_histories(serving.histories)
        metrics.tick_age.set(serving.tick_age)

    def _refresh_histories(self, histories: HistoriesSnapshot) -> None:
        metrics, counts = self.metrics, histories.counts
        metrics.history_users.set(histories.users)
        metrics.history_bytes.set(histories.bytes)
        metrics.history_lookups_waiting.set(histories.lookups)
        metrics.history_unsaved.set(histories.unsaved)
        metrics.history_at_risk.set(histories.at_risk)
        metrics.history_lag.set(histories.lag)
        for found, count in (("held", counts.hits), ("looked_up", counts.misses), ("none", counts.needed)):
            _set(metrics.history_requests.labels(found), count)
        _set(metrics.history_changes.labels("applied"), counts.applied)
        _set(metrics.history_changes.labels("duplicate"), counts.duplicates)
        _set(metrics.history_forgotten, counts.forgotten)
        _set(metrics.history_evicted, counts.evicted)
        _set(metrics.history_writes, counts.writes)
        _set(metrics.history_conflicts, counts.conflicts)
        _set(metrics.history_errors, histories.errors)

    def _stream(self) -> Mapping[str, Any]:
        serving = self.serving.snapshot() if self.serving else None
        partitions = serving.partitions if serving else ()
        known = [partition.lag for partition in partitions if partition.lag is not None]
        return {
            "lag_messages": sum(known) if known else None,
            "lag_seconds": max((partition.lag_seconds for partition in partitions), default=None),
            "in_flight": serving.in_flight if serving else 0,
            "queued": serving.queued if serving else 0,
            "running": serving.running if serving else 0,
            "paused": serving.paused if serving else False,
            "tick_age_s": serving.tick_age if serving else None,
            "records": self.metrics.count("records_total"),
            "dead_letters": self.metrics.count("dead_letters_total"),
            "group_protocol": serving.group.protocol if serving else None,
            "group_config_refused": serving.group.refused if serving else None,
            "partitions": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "lag_messages": partition.lag,
                    "lag_seconds": partition.lag_seconds,
                    "position": partition.position,
                    "committed": partition.committed,
                }
                for partition in partitions
            ],
        }

    def _load(self) -> Mapping[str, Any]:
        """``step``: how far down the ladder of ``load.degrade`` batches are made now."""
        serving, count = self.serving.snapshot() if self.serving else None, self.metrics.count
        return {
            "step": serving.step if serving else 0,
            "prediction_errors": dict(serving.prediction_errors) if serving else {},
            "answers_in_time": count("answers_in_time_total"),
            "turned_away": {reason: count("turned_away_total", reason=reason) for reason in get_args(Reason)},
            "degraded": {step: count("degraded_total", step=step) for step in get_args(Step)},
            "coalesced": count("coalesced_total"),
        }

    def _catalog(self) -> Mapping[str, Any]:
        if self.watcher is None:
            return dict.fromkeys(("state", "active", "previous", "generation", "staleness_s", "last_refusal")) | {
                "resident": {},
                "condemned": {},
                "kept": {},
            }
        watcher = self.watcher.snapshot()
        if watcher.reason is not None:
            self._last_refusal = {"version": watcher.target, "reason": watcher.reason, "message": watcher.error}
        return {
            "state": watcher.state,
            "active": watcher.active,
            "previous": watcher.previous,
            "generation": watcher.generation,
            "staleness_s": watcher.staleness_seconds,
            "activated": watcher.activated,
            "refused": dict(watcher.refused),
            "last_refusal": self._last_refusal,
            "target": watcher.target,
            "pinned": watcher.pinned,
            "rolled_back": watcher.rolled_back,
            "resident": dict(watcher.sizes),
            "resident_bytes": watcher.resident_bytes,
            "condemned": dict(watcher.condemned),
            "kept": dict(watcher.kept),
        }


def _set(counter: Counter, value: int) -> None:
    """A count that is kept elsewhere; the HTTP thread alone reads and sets it."""
    counter.reset()
    counter.inc(value)
