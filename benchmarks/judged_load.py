"""The serving loop's queue and device thread under a load of which every answer is judged; no Kafka."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.engine_run import narrowed
from benchmarks.shapes import Shape, pages_for
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

REQUESTS = 48
"""Different requests; each has one right answer a version."""

LEAST_OVERLAP = 0.5
"""Of an answer's items with the right answer's. Ties at the beam's edge may fall either way in batches of another size;
two versions share next to nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Model, catalog and load. ``seconds`` of swaps, one ``every`` so many; ``share`` of the measured capacity;
    ``beam``: width of every level; ``history``: items of a request's history.
    """

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

    def _answer(self, outcomes: Sequence[Outcome]) -> None:
        now = time.monotonic()
        for outcome in outcomes:
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


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain")
        time.sleep(0.002)
