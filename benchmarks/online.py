"""The whole service under load: requests through Kafka (the mock cluster, in this process) and back.

A closed loop keeps ``outstanding`` requests in the air, each with a history never seen before. The rate is compared
with what the same engine does offline, in this run, with batches of that size.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.card import CardWatch
from benchmarks.engine_run import load_engine, random_catalog, results
from benchmarks.measure import Timing, WallLimit, wall_ms
from benchmarks.results import ReportFile, Row
from benchmarks.shapes import SHAPES, pages_for, write_model
from consumer.client import RecallClient
from consumer.serving.service import ServingLoop
from consumer.serving.settings import BatchSettings
from consumer.stream.mock_cluster import CLIENT_SETTINGS, MockCluster
from consumer.stream.settings import KafkaSettings
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.errors import RecallstreamError
from engine.model.spec import ModelSpec
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest
from engine.settings import EngineSettings

_OFFLINE_RUNS = 8
_READY_S = 30.0
_TIMEOUT_S = 30.0
_TOP_K = 100


@dataclass(frozen=True, slots=True)
class OnlineOptions:
    """Contexts and widths are uniform between their two ends; ``requests`` of each round."""

    contexts: tuple[int, int]
    widths: tuple[int, int]
    outstanding: int = 4
    requests: int = 100
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Load:
    """One request to be: a history (item ids, oldest first) and a beam."""

    history: NDArray[np.int64]
    width: int


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
        return Load(self._random.integers(0, self._items, events), width)


@contextmanager
def loaded_model(model: str, items: int, options: OnlineOptions, device: torch.device) -> Iterator[RecallEngine]:
    """An engine on a named shape with random weights, or on a model directory, with a random catalog."""
    with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
        shape = SHAPES.get(model)
        path = Path(model) if shape is None else write_model(shape, Path(scratch), device)
        spec = ModelSpec.load(path)
        batch = 2 * options.outstanding
        settings = EngineSettings(
            model=path,
            device="cuda" if device.type == "cuda" else "cpu",
            context_pages=2 * batch * pages_for(options.contexts[1]),
            max_batch=batch,
            max_batch_rows=batch * max(options.widths[1], _TOP_K),
            max_width=max(options.widths[1], _TOP_K),
        )
        yield load_engine(settings, random_catalog(spec.id, spec.level_sizes, items))


def run_online(
    engine: RecallEngine, items: int, options: OnlineOptions, report: ReportFile, limit: WallLimit
) -> Iterator[Row]:
    """An offline row, a row a round, and what they come to. Raises RecallstreamError if the service does not answer."""
    make = LoadMaker(engine, options, items)
    offline = offline_rate(engine, make, options)
    yield report.add(offline)
    rounds = []
    with CardWatch(engine.device) as watch, _service(engine) as kafka:
        before = engine.stats()
        for number in range(options.rounds):
            if limit.passed:
                break
            row = asyncio.run(_round(kafka, make.take(options.requests), options.outstanding))
            rounds.append(report.add({"what": f"round {number + 1}", **_fields(options), **row}))
            yield rounds[-1]
        after = engine.stats()
    rates = [row["requests_per_s"] for row in rounds]
    if rates:
        summary = {
            "requests_per_s": median(rates),
            "of_offline": round(median(rates) / offline["requests_per_s"], 4),
            "ms": median(row["ms"] for row in rounds),
            "p99_ms": max(row["p99_ms"] for row in rounds),
            "p99_over_p50": round(max(row["p99_ms"] / row["ms"] for row in rounds), 3),
            "engine_counts": {name: value - before[name] for name, value in after.items() if value != before[name]},
            "card": watch.summary(),
        }
        yield report.add({"what": "online", **_fields(options), **summary})


def offline_rate(engine: RecallEngine, make: LoadMaker, options: OnlineOptions) -> Row:
    """The engine alone, batches of ``outstanding``; the first two batches are not counted."""

    def call() -> None:
        results(engine.recall(_requests(engine, make.take(options.outstanding))))

    for _ in range(2):
        call()
    timing = Timing.of([wall_ms(call, 1).median_ms for _ in range(_OFFLINE_RUNS)])
    rate = round(options.outstanding / timing.median_ms * 1e3, 3)
    return {"what": "offline", **_fields(options), **timing.row(), "requests_per_s": rate}


def _requests(engine: RecallEngine, loads: Sequence[Load]) -> list[RecallRequest]:
    levels = len(engine.spec.levels)
    return [
        RecallRequest(beam=BeamPolicy((load.width,) * levels), top_k=min(_TOP_K, load.width), history=load.history)
        for load in loads
    ]


@contextmanager
def _service(engine: RecallEngine) -> Iterator[KafkaSettings]:
    """Broker and serving loop, up and a member of its group."""
    logging.getLogger("consumer").addHandler(logging.NullHandler())  # a failure is raised here
    kafka = KafkaSettings(consumer_options=dict(CLIENT_SETTINGS))
    with MockCluster({kafka.request_topic: 2, kafka.reply_topic: 1, kafka.dead_letter_topic: 1}) as broker:
        kafka = kafka.model_copy(update={"bootstrap_servers": broker.bootstrap_servers})
        batch = BatchSettings(max_requests=min(BatchSettings().max_requests, engine.settings.max_batch))
        limit_ms = int(_TIMEOUT_S * 1e3)
        defaults = RecallDefaults(deadline_ms=limit_ms, max_deadline_ms=2 * limit_ms)
        loop = ServingLoop(engine, kafka=kafka, batch=batch, limits=WireLimits(), defaults=defaults)
        loop.start()
        try:
            _wait_until_joined(loop)
            yield kafka
        finally:
            loop.stop()
    if loop.failure is not None:
        raise RecallstreamError(loop.failure)


def _wait_until_joined(loop: ServingLoop) -> None:
    deadline = time.monotonic() + _READY_S
    while not loop.snapshot().partitions:
        if time.monotonic() > deadline:
            raise RecallstreamError(f"the service joined no group within {_READY_S:g} s: {loop.snapshot().not_ready}")
        time.sleep(0.01)


async def _round(kafka: KafkaSettings, loads: Sequence[Load], outstanding: int) -> Row:
    """All of ``loads``, so many in the air at a time."""
    queue = iter(loads)
    latencies: list[float] = []
    stages: dict[str, list[float]] = {}

    async with RecallClient(kafka, timeout=_TIMEOUT_S) as client:

        async def work() -> None:
            for load in queue:
                begin = time.perf_counter()
                reply = await client.recall(
                    history=load.history, beam={"width": load.width}, top_k=min(_TOP_K, load.width)
                )
                latencies.append((time.perf_counter() - begin) * 1e3)
                if reply.status != "ok":
                    raise RecallstreamError(f"a reply of status {reply.status}: {reply.error}")
                for stage, milliseconds in reply.timing_ms.items():
                    stages.setdefault(stage, []).append(milliseconds)

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as workers:
            for _ in range(outstanding):
                workers.create_task(work())
        seconds = time.perf_counter() - begin
    percentiles = quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
    return {
        "ms": round(median(latencies), 4),
        "p99_ms": round(percentiles[98], 4),
        "max_ms": round(max(latencies), 4),
        "requests": len(latencies),
        "requests_per_s": round(len(latencies) / seconds, 3),
        "stages_ms": {stage: round(median(values), 4) for stage, values in stages.items()},
    }


def _fields(options: OnlineOptions) -> dict[str, object]:
    (low, high), (narrow, wide) = options.contexts, options.widths
    context = f"context {low}" if low == high else f"contexts {low} to {high}"
    beam = f"beam {narrow}" if narrow == wide else f"beams {narrow} to {wide}"
    return {"case": f"{beam}, {context}, {options.outstanding} outstanding", "outstanding": options.outstanding}
