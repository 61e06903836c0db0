"""The whole service under load: requests through Kafka and back. The mock cluster is in this process, the client in one
of its own.

A closed loop keeps so many requests in the air, each with a history never seen before; or requests arrive at random, at
a given rate. The rate is compared with what the same engine does offline, in this run, with batches of that size.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch

from benchmarks.card import CardWatch
from benchmarks.cases import Precision
from benchmarks.embedded_service import embedded_service
from benchmarks.engine_run import load_engine, narrowed, random_catalog, results
from benchmarks.generator import Generator, Load, Told, generator
from benchmarks.measure import Timing, WallLimit, wall_ms
from benchmarks.results import ReportFile, Row
from benchmarks.shapes import SHAPES, pages_for, write_model
from benchmarks.summary import ONLINE, TRACED
from benchmarks.timeline import traced
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from engine.errors import RecallstreamError
from engine.model.spec import ModelSpec
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest
from engine.runtime import buckets
from engine.settings import EngineSettings

_OFFLINE_RUNS = 8
_TRACED_REQUESTS = 96  # one or two seconds, so that the first requests hardly count, and no more to read than must be
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """So many requests in the air at a time, or, with ``rate``, so many arrivals a second at random moments."""

    outstanding: int
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.outstanding} outstanding" if self.rate is None else f"{self.rate:g} arrivals a second"


@dataclass(frozen=True, slots=True)
class OnlineOptions:
    """Contexts and widths are uniform between their two ends.

    ``pressures``: one measurement each;
    ``requests`` of each round; ``top_k``: at most; ``trace``: one more round, profiled, on CUDA.
    """

    contexts: tuple[int, int]
    widths: tuple[int, int]
    pressures: tuple[Pressure, ...] = (Pressure(4),)
    requests: int = 100
    rounds: int = 3
    top_k: int = 100
    precision: Precision = "bf16"
    trace: bool = False

    def fields(self, pressure: Pressure) -> dict[str, object]:
        (low, high), (narrow, wide) = self.contexts, self.widths
        context = f"context {low}" if low == high else f"contexts {low} to {high}"
        beam = f"beam {narrow}" if narrow == wide else f"beams {narrow} to {wide}"
        precision = "" if self.precision == "bf16" else f", {self.precision}"
        return {
            "case": f"{beam}, {context}, {pressure}{precision}",
            "outstanding": pressure.outstanding,
            "mixed": low < high or narrow < wide,
        }


class LoadMaker:
    """Random requests for a model with a prompt around its items."""

    def __init__(self, engine: RecallEngine, options: OnlineOptions, items: int) -> None:
        self._spec, self._options, self._items = engine.spec, options, items
        self._random = np.random.default_rng(7)

    def take(self, count: int) -> list[Load]:
        return [self._one() for _ in range(count)]

    def _one(self) -> Load:
        context, width = (
            int(self._random.integers(low, high + 1)) for low, high in (self._options.contexts, self._options.widths)
        )
        prompt = self._spec.prompts["default"]
        around = self._spec.prompt_tokens(prompt, 0)
        events = (context - around) // (self._spec.prompt_tokens(prompt, 1) - around)
        return Load(self._random.integers(0, self._items, events), width, min(self._options.top_k, width))


@contextmanager
def loaded_model(model: str, items: int, options: OnlineOptions, device: torch.device) -> Iterator[RecallEngine]:
    """An engine on a named shape with random weights, or on a model directory, with a random catalog."""
    with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
        shape = SHAPES.get(model)
        path = Path(model) if shape is None else write_model(shape, Path(scratch), device)
        spec = ModelSpec.load(path)
        batch = min(2 * max(each.outstanding for each in options.pressures), BatchSettings().max_requests)
        width = max(options.widths[1], options.top_k)
        values: dict[str, Any] = {
            "model": path,
            "device": "cuda" if device.type == "cuda" else "cpu",
            "context_pages": 2 * batch * pages_for(options.contexts[1]),
            "max_batch": batch,
            "max_batch_rows": batch * width,
            "max_width": width,
        }
        if options.precision == "fp8":
            values["precision"] = "fp8"
        wanted = [size for size in (*buckets.WIDTHS, width) if options.widths[0] <= size <= width]
        with narrowed(widths=wanted, requests=buckets.REQUESTS):
            engine = load_engine(EngineSettings(**values), random_catalog(spec.id, spec.level_sizes, items))
        yield engine


def run_online(
    engine: RecallEngine, items: int, options: OnlineOptions, report: ReportFile, limit: WallLimit
) -> Iterator[Row]:
    """For each load an offline row, a row a round, and what they come to.

    Raises RecallstreamError if the service does not answer.
    """
    make = LoadMaker(engine, options, items)
    offline = {load: report.add(offline_rate(engine, make, options, load)) for load in options.pressures}
    with generator() as clients, embedded_service(engine, partitions=2, deadline_s=_TIMEOUT_S) as (kafka, _):
        for load, alone in offline.items():
            yield alone
            before, rounds = engine.stats(), []
            with CardWatch(engine.device) as watch:
                for number in range(options.rounds):
                    if limit.passed:
                        return
                    row = _round(clients, kafka, make.take(options.requests), load)
                    rounds.append(report.add({"what": f"round {number + 1}", **options.fields(load), **row}))
                    yield rounds[-1]
            counts = {name: value - before[name] for name, value in engine.stats().items()}
            whole = _whole(rounds, alone, counts) | {"card": watch.summary()}
            yield report.add({"what": ONLINE, **options.fields(load), **whole})
            if options.trace and engine.device.type == "cuda":
                loaded = load.rate is None or load.rate >= alone["requests_per_s"]
                row = _traced(clients, kafka, make, options, load) | {"loaded": loaded}
                yield report.add({"what": TRACED, **options.fields(load), **row})


def _traced(clients: Generator, kafka: KafkaSettings, make: LoadMaker, options: OnlineOptions, load: Pressure) -> Row:
    """A round under the profiler, which makes it slower; how busy the device was."""
    with traced() as timeline:
        row = _round(clients, kafka, make.take(min(options.requests, _TRACED_REQUESTS)), load)
    return row | {"device": timeline.row()}


def _whole(rounds: Sequence[Row], offline: Row, counts: Mapping[str, float]) -> Row:
    """The rounds together. ``counts``: what the engine counted meanwhile."""
    rate = median(row["requests_per_s"] for row in rounds)
    return {
        "requests_per_s": rate,
        "of_offline": round(rate / offline["requests_per_s"], 4),
        "ms": median(row["ms"] for row in rounds),
        "p99_ms": max(row["p99_ms"] for row in rounds),
        "p99_over_p50": round(max(row["p99_ms"] / row["ms"] for row in rounds), 3),
        "graph_hits": {what: share for what in ("prefills", "searches") if (share := _hits(counts, what)) is not None},
        "padded": {what: share for what in ("prefill_tokens", "search_rows") if (share := _padded(counts, what))},
        "engine_counts": {name: value for name, value in counts.items() if value},
    }


def _hits(counts: Mapping[str, float], what: str) -> float | None:
    """Share that ran from a graph."""
    graph, eager = counts.get(f"graph_{what}", 0), counts.get(f"eager_{what}", 0)
    return round(graph / (graph + eager), 4) if graph + eager else None


def _padded(counts: Mapping[str, float], what: str) -> float | None:
    """Share of the work that rounding batches up added."""
    real, padding = counts.get(what, 0), counts.get(f"{what}_padded", 0)
    return round(padding / (real + padding), 4) if real else None


def offline_rate(engine: RecallEngine, make: LoadMaker, options: OnlineOptions, pressure: Pressure) -> Row:
    """The engine alone, one batch after another; the first two are not counted."""

    def call() -> None:
        results(engine.recall(_requests(engine, make.take(pressure.outstanding))))

    for _ in range(2):
        call()
    timing = Timing.of([wall_ms(call, 1).median_ms for _ in range(_OFFLINE_RUNS)])
    rate = round(pressure.outstanding / timing.median_ms * 1e3, 3)
    return {"what": "offline", **options.fields(pressure), **timing.row(), "requests_per_s": rate}


def _requests(engine: RecallEngine, loads: Sequence[Load]) -> list[RecallRequest]:
    levels = len(engine.spec.levels)
    return [
        RecallRequest(beam=BeamPolicy((load.width,) * levels), top_k=load.top_k, history=load.history) for load in loads
    ]


def _round(clients: Generator, kafka: KafkaSettings, loads: Sequence[Load], pressure: Pressure) -> Row:
    """All of ``loads`` under this pressure. Raises RecallstreamError."""
    if pressure.rate is None:
        told = clients.keep_in_the_air(kafka, loads, pressure.outstanding).result()
    else:  # a Poisson process, the same moments in every run
        moments = np.random.default_rng(11).exponential(1 / pressure.rate, len(loads)).cumsum()
        told = clients.send_at(kafka, loads, moments).result()
    return round_row(told)


def round_row(told: Sequence[Told]) -> Row:
    """Raises RecallstreamError if not all are answered."""
    if failed := [each for each in told if each.status != "ok"]:
        raise RecallstreamError(f"{len(failed)} replies are not ok, the first is {failed[0].status}")
    latencies = [each.at * 1e3 for each in told]
    percentiles = quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
    return {
        "ms": round(median(latencies), 4),
        "p99_ms": round(percentiles[98], 4),
        "max_ms": round(max(latencies), 4),
        "requests": len(told),
        "requests_per_s": round(len(told) / max(each.due + each.at for each in told), 3),
        "stages_ms": {stage: round(median(each.timing_ms[stage] for each in told), 4) for stage in told[0].timing_ms},
    }
