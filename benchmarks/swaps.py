"""Catalog swaps under load: is every answer of one version, and what do the swaps cost the others?

``python -m benchmarks.swaps [--items N] [--seconds S] [--every S] [--model NAME]``. The serving loop's queue and device
thread get requests at random moments, at a share of what they can do (measured first). At first and at last the pointer
stays; in between it moves every few seconds to another version, published in a real Redis and followed by the service's
own watcher. Each version gives the items other SIDs, so an answer that mixed two of them would show: its items do not
have the SIDs that it names, or it is none of what the engine answers from that version without any load.

Ends with exit code 1 if an answer is wrong or missing, with 2 if only the latency is beyond its bound.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import SecretStr

from benchmarks.card import describe, device_name
from benchmarks.engine_run import narrowed, results
from benchmarks.results import ReportFile, default_path
from benchmarks.shapes import SHAPES, Shape, pages_for, write_model
from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Manifest
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from catalog_sync.watcher import Watcher
from consumer.service.garbage import settle
from consumer.serving.batch_queue import BatchQueue
from consumer.serving.device import DeviceLoop
from consumer.serving.errands import Errands
from consumer.serving.in_flight import InFlight, Outcome
from consumer.serving.observer import NullObserver
from consumer.serving.settings import BatchSettings
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.runtime import buckets
from engine.settings import EngineSettings

VERSIONS = 6
"""They take turns: with two resident, every swap fetches and stages."""

REQUESTS = 48
"""Different requests; each has one right answer a version."""

LEAST_OVERLAP = 0.5
"""Of an answer's items with the right answer's. Ties at the beam's edge may fall either way in batches of another size;
two versions share next to nothing."""

QUIET = 0.2
"""Share of the time with swaps that the load runs without them, before and again after."""

P99_BOUND = 1.2


@dataclass(frozen=True, slots=True)
class Plan:
    shape: Shape
    items: int
    seconds: float
    every: float
    share: float
    batch: int
    beam: int
    history: int

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.shape.codes,) * self.shape.levels

    def sids(self, version: int) -> NDArray[np.int32]:
        """The SIDs of items 0, 1, ...: always the same SIDs, handed out anew."""
        table = np.stack(
            [np.random.default_rng(level).integers(0, size, self.items) for level, size in enumerate(self.sizes)],
            axis=1,
        )
        return table[np.random.default_rng(100 + version).permutation(self.items)].astype(np.int32)

    def catalog(self, version: int) -> Catalog:
        ids = np.arange(self.items)
        return build_catalog(version="", model=self.shape.name, sizes=self.sizes, ids=ids, sids=self.sids(version))

    def requests(self) -> list[RecallRequest]:
        random = np.random.default_rng(7)
        beam = BeamPolicy((self.beam,) * self.shape.levels)
        histories = [random.integers(0, self.items, self.history) for _ in range(REQUESTS)]
        return [
            RecallRequest(beam, top_k=min(10, self.beam), history=history, return_sids=True) for history in histories
        ]


@dataclass(slots=True, eq=False)
class Asked:
    """What the queue and the device thread look at; ``due`` is when it arrived."""

    request: RecallRequest
    number: int
    due: float
    tokens: int
    deadline: float = float("inf")
    started: float | None = None
    priority: int = 5
    caller: str = ""
    run_key: None = None

    @property
    def admitted(self) -> float:
        return self.due

    @property
    def asked(self) -> RecallRequest:
        return self.request


@dataclass(slots=True)
class Phase:
    """What was asked and answered in a stretch of time."""

    latencies: list[float] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    exact: int = 0
    asked: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return len(self.latencies)

    def row(self) -> dict[str, Any]:
        p50, p99 = (float(np.quantile(self.latencies, q)) * 1e3 for q in (0.5, 0.99))
        return {
            "asked": self.asked,
            "answered": self.done,
            "requests_per_s": round(self.done / self.seconds, 2),
            "ms": round(p50, 3),
            "p99_ms": round(p99, 3),
            "versions": len(self.answered),
            "wrong": dict(self.wrong),
            "exact_share": round(self.exact / max(self.done, 1), 4),
        }


class Oracle:
    """The right answer of every request from every version, and what an answer must hold by itself."""

    def __init__(self, plan: Plan, names: Sequence[str]) -> None:
        self._sids = {name: plan.sids(version) for version, name in enumerate(names)}
        self._right: dict[tuple[str, int], NDArray[Any]] = {}

    def learn(self, version: str, answers: Sequence[RecallResult]) -> None:
        self._right |= {(version, number): np.asarray(answer.items) for number, answer in enumerate(answers)}

    def fault(self, number: int, answer: object) -> tuple[str | None, bool]:
        """What is wrong, and whether the answer is the right one to the last item."""
        if not isinstance(answer, RecallResult):
            return "error", False
        if answer.catalog not in self._sids or answer.sids is None:
            return "unknown version", False
        items, right = np.asarray(answer.items), self._right[answer.catalog, number]
        if not np.array_equal(self._sids[answer.catalog][items], answer.sids):
            return "items of another version", False
        if len(items) != len(right) or len(np.intersect1d(items, right)) < LEAST_OVERLAP * len(right):
            return "not the version's answer", False
        return None, np.array_equal(items, right)


class Service:
    """The serving loop without Kafka: queue, device thread, watcher."""

    def __init__(self, plan: Plan, model: Path) -> None:
        self._plan = plan
        settings = EngineSettings(
            model=model,
            context_pages=4 * plan.batch * pages_for(plan.shape.levels * plan.history + 2),
            max_batch=plan.batch,
            max_batch_rows=plan.batch * plan.beam,
            max_width=plan.beam,
        )
        with narrowed(widths=[plan.beam], requests=[size for size in buckets.REQUESTS if size <= plan.batch]):
            self.engine = RecallEngine(settings)
            self.engine.warm_up()
        self._queue = BatchQueue(
            BatchSettings(max_requests=plan.batch, max_tokens=1 << 30), time.monotonic, lambda _: None, Errands()
        )
        self._device = DeviceLoop(self.engine, self._queue, self._answer, NullObserver(), time.monotonic)
        self._thread = threading.Thread(target=self._device.run, name="device")
        self._judge = ThreadPoolExecutor(1)
        self._requests = plan.requests()
        self.oracle: Oracle | None = None
        self.phase = Phase()

    def __enter__(self) -> "Service":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()
        self._thread.join()
        self._judge.shutdown()

    def ask(self, numbers: Sequence[int], due: float) -> None:
        asked = [
            Asked(self._requests[number], number, due, self.engine.estimate_tokens(self._requests[number]))
            for number in numbers
        ]
        self.phase.asked += len(asked)
        self._queue.add(cast(Sequence[InFlight], asked))

    def run(self, load: Callable[[], None]) -> Phase:
        """Let ``load`` ask, wait for the answers."""
        self.phase = phase = Phase()
        begin = time.monotonic()
        load()
        phase.seconds = time.monotonic() - begin
        wait_for(lambda: phase.done == phase.asked)
        return phase

    def closed_loop(self, seconds: float) -> Phase:
        """Two batches in the air all the time: what can be done."""

        def load() -> None:
            end, sent = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                missing = 2 * self._plan.batch - (self.phase.asked - self.phase.done)
                self.ask([(sent + n) % REQUESTS for n in range(missing)], time.monotonic())
                sent += missing
                time.sleep(0.0005)

        return self.run(load)

    def at_random(self, rate: float, seconds: float, seed: int) -> Phase:
        """So many arrivals a second; an arrival that comes late to the queue has waited since it was due."""
        random = np.random.default_rng(seed)

        def load() -> None:
            due = begin = time.monotonic()
            while (due := due + random.exponential(1 / rate)) < begin + seconds:
                time.sleep(max(0.0, due - time.monotonic()))
                self.ask([int(random.integers(REQUESTS))], due)

        return self.run(load)

    def _answer(self, outcome: Outcome) -> None:
        now = time.monotonic()
        self._judge.submit(self._look, self.phase, cast(Asked, outcome.item), outcome.answer, now)

    def _look(self, phase: Phase, asked: Asked, answer: object, now: float) -> None:
        if self.oracle is not None:
            fault, exact = self.oracle.fault(asked.number, answer)
            phase.exact += exact
            if fault is not None:
                phase.wrong[fault] += 1
        if isinstance(answer, RecallResult):
            phase.answered[answer.catalog] += 1
        phase.latencies.append(now - asked.due)


class Swapper:
    """Moves the pointer through the versions, in time."""

    def __init__(self, publisher: Publisher, names: Sequence[str], every: float) -> None:
        self._publisher, self._names, self._every = publisher, names, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swapper")
        self.moved = 0

    def __enter__(self) -> "Swapper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stop.wait(max(0.0, begin + self._every * (self.moved + 1) - time.monotonic())):
            self.moved += 1
            self._publisher.activate(self._names[self.moved % len(self._names)])


def measure(plan: Plan, device: torch.device, report: ReportFile) -> dict[str, Any]:
    """The row of the whole run."""
    with EmbeddedRedis() as server, tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
        write_model(plan.shape, Path(scratch), device)
        settings = CatalogSettings(url=SecretStr(server.url), poll_seconds=60, guard_requests=0)
        service = Service(plan, Path(scratch))
        with connect(settings) as client, service:
            publisher = Publisher(client, settings.namespace)
            names = published(plan, publisher)
            oracle = Oracle(plan, names)
            learn(service.engine, plan, publisher, oracle, settings, names)
            with Watcher(settings, service.engine.catalogs) as watcher:
                wait_for(lambda: service.engine.catalogs.active == names[0])
                service.closed_loop(min(3.0, plan.seconds / 4))  # compiles and first touches
                capacity = service.closed_loop(max(3.0, plan.seconds / 30))
                rate = plan.share * capacity.done / capacity.seconds
                service.oracle = oracle
                before = service.at_random(rate, plan.seconds * QUIET, seed=1)
                activated = watcher.snapshot().activated
                with Swapper(publisher, names, plan.every) as swapper:
                    swaps = service.at_random(rate, plan.seconds, seed=2)
                activated = watcher.snapshot().activated - activated
                after = service.at_random(rate, plan.seconds * QUIET, seed=3)
                refused = dict(watcher.snapshot().refused)
    quiet = float(np.quantile(before.latencies + after.latencies, 0.99)) * 1e3
    phases = {"quiet_before": before.row(), "swaps": swaps.row(), "quiet_after": after.row()}
    return report.add(
        {
            "what": "swaps under load",
            "case": f"{plan.items:,} items, a swap every {plan.every:g} s, {plan.share:.0%} of capacity",
            "capacity_per_s": round(capacity.done / capacity.seconds, 2),
            "of_capacity": round(swaps.done / swaps.seconds / (capacity.done / capacity.seconds), 3),
            "pointer_moves": swapper.moved,
            "activated": activated,
            "refused": refused,
            "p99_over_quiet": round(phases["swaps"]["p99_ms"] / quiet, 3),
            "quiet_p99_ms": round(quiet, 3),
            **phases,
        }
    )


def published(plan: Plan, publisher: Publisher) -> list[str]:
    """Upload every version and make the first one current; their names."""
    names = []
    for version in range(VERSIONS):
        data = blob.encode(plan.catalog(version))
        names.append(publisher.upload(Manifest.of(blob.decode(data), data), data).version)
    publisher.activate(names[0])
    return names


def learn(
    engine: RecallEngine,
    plan: Plan,
    publisher: Publisher,
    oracle: Oracle,
    settings: CatalogSettings,
    names: Sequence[str],
) -> None:
    """Ask the engine alone, one request after the other, from every version; the last one is the first."""
    requests = plan.requests()
    with Watcher(settings, engine.catalogs):
        for name in [*names[1:], names[0]]:
            publisher.activate(name)
            wait_for(lambda name=name: engine.catalogs.active == name)  # type: ignore[misc]
            oracle.learn(name, [results(engine.recall([request]))[0] for request in requests])


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain")
        time.sleep(0.002)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=300.0, help="of swaps")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two swaps")
    parser.add_argument("--share", type=float, default=0.75, help="of the measured capacity")
    parser.add_argument("--model", default="qwen3-0.6b", choices=list(SHAPES))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--beam", type=int, default=256)
    parser.add_argument("--history", type=int, default=160, help="items of a request's history")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = Plan(
        SHAPES[options.model], options.items, options.seconds, options.every, options.share, options.batch,
        options.beam, options.history,
    )  # fmt: skip
    head = {**describe(device), "model": options.model, "batch": options.batch, "beam": options.beam}
    report = ReportFile(options.out or default_path("swaps", device_name(device)), head)
    settle()  # as the service does
    row = measure(plan, device, report)
    print(json.dumps(row, indent=1))
    return verdict(row)


def verdict(row: dict[str, Any]) -> int:
    phases = [row[name] for name in ("quiet_before", "swaps", "quiet_after")]
    sound = all(not phase["wrong"] and phase["asked"] == phase["answered"] for phase in phases)
    if not sound or row["refused"] or row["activated"] < row["pointer_moves"] - 1:
        return 1
    return 2 if row["p99_over_quiet"] > P99_BOUND else 0


if __name__ == "__main__":
    sys.exit(main())
