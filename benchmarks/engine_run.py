"""The engine on random requests against a random catalog, timed from requests in to items out."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.breakdown import breakdown, profile
from benchmarks.card import CardWatch
from benchmarks.cases import Case
from benchmarks.measure import Timing, wall_ms
from benchmarks.results import Row
from benchmarks.shapes import pages_for
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.recall_engine import Answer, RecallEngine, Running
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.runtime import buckets
from engine.settings import PAGE_TOKENS, EngineSettings

WARM_RUNS = 2
_ENOUGH_MS = 1_000.0
_MIN_RUNS, _MAX_RUNS = 5, 30


def random_catalog(model_id: str, sizes: Sequence[int], items: int, seed: int = 0) -> Catalog:
    """``items`` uniform SIDs; collisions occur as they do in life."""
    random = np.random.default_rng(seed)
    sids = np.stack([random.integers(0, size, items, dtype=np.int32) for size in sizes], axis=1)
    return build_catalog(version=f"random-{items}", model=model_id, sizes=sizes, ids=np.arange(items), sids=sids)


def random_requests(case: Case, random: np.random.Generator) -> list[RecallRequest]:
    """A batch with fresh tokens, so that no context can have been seen before."""
    first, last = case.shape.token_bases[0], case.shape.vocab
    return [
        RecallRequest(
            beam=BeamPolicy(case.widths, case.margin),
            top_k=case.widths[-1],
            tokens=random.integers(first, last, case.context, dtype=np.int32),
            score=case.score,
        )
        for _ in range(case.batch)
    ]


def engine_settings(
    model: Path, cases: Sequence[Case], device: torch.device, flights: int = 2, **changes: Any
) -> EngineSettings:
    """Pools for ``flights`` batches of the largest of the cases, and graphs for all of them."""
    batch, width = max(case.batch for case in cases), max(case.width for case in cases)
    pages = max(case.batch * pages_for(case.context) for case in cases)
    values: dict[str, Any] = {
        "model": model,
        "device": device.type,
        "context_pages": flights * pages,
        "max_batch": batch,
        "max_batch_tokens": pages * PAGE_TOKENS,
        "max_batch_rows": batch * width,
        "max_width": width,
        "max_top_k": width,
        "graph_beams": tuple({case.beam for case in cases if isinstance(case.beam, tuple)}),
        "graph_vocab": any(case.score == "vocab" for case in cases),
    }
    if any(case.precision == "fp8" for case in cases):
        values["precision"] = "fp8"
    return EngineSettings(**(values | changes))


@contextmanager
def graphs_of(cases: Sequence[Case]) -> Iterator[None]:
    """An engine made and warmed inside captures only those graphs that the cases take; they are the same ones."""
    widest = max(case.width for case in cases)
    widths = {buckets.round_up(buckets.width_buckets(widest), case.width) for case in cases}
    requests = {buckets.round_up(buckets.REQUESTS, case.batch) for case in cases}
    with narrowed(widths=widths, requests=requests):
        yield


@contextmanager
def narrowed(*, widths: Iterable[int], requests: Iterable[int]) -> Iterator[None]:
    """Engines made and warmed inside capture graphs for these beam widths and numbers of requests only."""
    kept = buckets.WIDTHS, buckets.REQUESTS
    buckets.WIDTHS, buckets.REQUESTS = tuple(sorted(set(widths))), tuple(sorted(set(requests)))
    try:
        yield
    finally:
        buckets.WIDTHS, buckets.REQUESTS = kept


def load_engine(settings: EngineSettings, catalog: Catalog) -> RecallEngine:
    """Warm, the catalog active."""
    engine = RecallEngine(settings)
    engine.catalogs.stage(catalog)
    engine.catalogs.activate(catalog.version)
    engine.warm_up()
    return engine


@dataclass(frozen=True, slots=True)
class EngineRun:
    """Times of one case. ``wall``: from one answer to the next; ``latency_ms``: from a call to its answer, the mean.

    ``prefill_ms`` and ``decode_ms``: the engine's own, medians. ``peak_bytes``: most allocated
    on the device; ``device_bytes``: in use on it at the end, by whomever;
    ``needed_bytes``: of them weights and the pools of keys and values.
    """

    batch: int
    wall: Timing
    latency_ms: float
    prefill_ms: float
    decode_ms: float
    peak_bytes: int
    device_bytes: int
    needed_bytes: int
    card: dict[str, float] | None

    def row(self) -> Row:
        return {
            **self.wall.row(),
            "latency_ms": round(self.latency_ms, 4),
            "prefill_ms": round(self.prefill_ms, 4),
            "decode_ms": round(self.decode_ms, 4),
            "requests_per_s": round(self.batch / self.wall.median_ms * 1e3, 3),
            "peak_gb": round(self.peak_bytes / 1e9, 3),
            "device_gb": round(self.device_bytes / 1e9, 3),
            "needed_gb": round(self.needed_bytes / 1e9, 3),
            "card": self.card,
        }


def run_case(engine: RecallEngine, case: Case, runs: int | None = None) -> EngineRun:
    """One batch at a time. ``runs`` None: as many as fill a second. Raises RequestError if a request is refused."""
    batches = _batches(engine, case, runs)
    answers: list[RecallResult] = []
    with _watched(engine) as watch:
        times = [wall_ms(lambda batch=batch: answers.extend(results(engine.recall(batch))), 1) for batch in batches]  # type: ignore[misc]  # bound now
    milliseconds = [time.median_ms for time in times]
    return _run(engine, case, milliseconds, mean(milliseconds), answers, watch)


def run_pipelined(engine: RecallEngine, case: Case, runs: int | None = None) -> EngineRun:
    """Two batches in flight: the time from one batch's answers to the next one's."""
    answers, begins, ends = [], [], []
    running: list[Running] = []
    batches = _batches(engine, case, runs)
    with _watched(engine) as watch:
        for batch in [*batches, None]:
            if batch is not None:
                begins.append(perf_counter() * 1e3)
                running.append(engine.submit(batch))
            if batch is None or len(running) > 1:
                answers += results(running.pop(0).collect())
                ends.append(perf_counter() * 1e3)
    latency = mean(end - begin for begin, end in zip(begins, ends, strict=True))
    return _run(engine, case, [later - earlier for earlier, later in pairwise(ends)], latency, answers, watch)


def _run(
    engine: RecallEngine,
    case: Case,
    milliseconds: Sequence[float],
    latency_ms: float,
    answers: Sequence[RecallResult],
    watch: CardWatch,
) -> EngineRun:
    return EngineRun(
        batch=case.batch,
        wall=Timing.of(milliseconds),
        latency_ms=latency_ms,
        prefill_ms=median(answer.prefill_ms for answer in answers),
        decode_ms=median(answer.decode_ms for answer in answers),
        peak_bytes=torch.cuda.max_memory_allocated(engine.device) if engine.device.type == "cuda" else 0,
        device_bytes=_device_bytes(engine.device),
        needed_bytes=_needed_bytes(engine, case),
        card=watch.summary(),
    )


def same_alone(engine: RecallEngine, case: Case) -> float:
    """Share of a batch's requests whose items and scores are bit for bit those of the request by itself."""
    (batch, *_) = _batches(engine, case, 1)
    together = results(engine.recall(batch))
    alone = [results(engine.recall([request]))[0] for request in batch]
    same = (
        np.array_equal(a.items, b.items) and np.array_equal(a.scores, b.scores)
        for a, b in zip(together, alone, strict=True)
    )
    return sum(same) / len(batch)


def profile_case(engine: RecallEngine, case: Case) -> dict[str, dict[str, float]]:
    """Where the time of one batch goes; see ``breakdown``. On CUDA only."""
    (batch, *_) = _batches(engine, case, 1)
    return breakdown(profile(lambda: engine.recall(batch)))


def results(answers: Sequence[Answer]) -> list[RecallResult]:
    """The answers, all of which must be results. Raises RequestError."""
    found = []
    for answer in answers:
        if not isinstance(answer, RecallResult):
            raise answer
        found.append(answer)
    return found


def _batches(engine: RecallEngine, case: Case, runs: int | None) -> list[list[RecallRequest]]:
    """Fresh batches for the repetitions; the kernels of the case are warm then."""
    random = np.random.default_rng(case.context * 31 + case.batch)
    for _ in range(WARM_RUNS if engine.device.type == "cuda" else 1):
        batch = random_requests(case, random)
        first = wall_ms(lambda batch=batch: results(engine.recall(batch)), 1)  # type: ignore[misc]  # bound now
    if runs is None:
        runs = int(min(max(_ENOUGH_MS / first.median_ms, _MIN_RUNS), _MAX_RUNS))
    return [random_requests(case, random) for _ in range(max(runs, 1) + 1)]


@contextmanager
def _watched(engine: RecallEngine) -> Iterator[CardWatch]:
    gc.collect()
    if engine.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(engine.device)
    with CardWatch(engine.device) as watch:
        yield watch


def _device_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    free, whole = torch.cuda.mem_get_info(device)
    return whole - free


def _needed_bytes(engine: RecallEngine, case: Case) -> int:
    stats = engine.stats()
    pools = stats["context_bytes"] + stats["beam_bytes"]
    return case.shape.parameters * engine.dtype.itemsize + int(pools)
