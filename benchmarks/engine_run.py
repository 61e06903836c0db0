"""The engine on random requests against a random catalog, timed from requests in to items out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.card import CardWatch
from benchmarks.cases import Case
from benchmarks.measure import Timing, wall_ms
from benchmarks.results import Row, timed
from benchmarks.shapes import pages_for
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.settings import EngineSettings

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
            beam=BeamPolicy((case.width,) * case.shape.levels),
            top_k=case.width,
            tokens=random.integers(first, last, case.context, dtype=np.int32),
            score=case.score,
        )
        for _ in range(case.batch)
    ]


def engine_settings(model: Path, cases: Sequence[Case], device: torch.device, **changes: Any) -> EngineSettings:
    """Pools for the largest of the cases."""
    values: dict[str, Any] = {
        "model": model,
        "device": device.type,
        "context_pages": max(case.batch * pages_for(case.context) for case in cases),
        "max_batch": max(case.batch for case in cases),
        "max_width": max(case.width for case in cases),
        "max_top_k": max(case.width for case in cases),
    }
    return EngineSettings(**(values | changes))


def load_engine(settings: EngineSettings, catalog: Catalog) -> RecallEngine:
    engine = RecallEngine(settings)
    engine.catalogs.stage(catalog)
    engine.catalogs.activate(catalog.version)
    return engine


@dataclass(frozen=True, slots=True)
class EngineRun:
    """Times of one case. ``wall``: the call; ``prefill_ms`` and ``decode_ms``: the engine's own, medians."""

    wall: Timing
    prefill_ms: float
    decode_ms: float
    peak_bytes: int
    card: dict[str, float] | None

    def row(self, what: str, case: Case, **more: object) -> Row:
        return timed(
            what,
            case.fields(),
            self.wall,
            prefill_ms=round(self.prefill_ms, 4),
            decode_ms=round(self.decode_ms, 4),
            requests_per_s=round(case.batch / self.wall.median_ms * 1e3, 3),
            peak_gb=round(self.peak_bytes / 1e9, 3),
            card=self.card,
            **more,
        )


def run_case(engine: RecallEngine, case: Case, runs: int | None = None) -> EngineRun:
    """``runs`` None: as many as fill a second. Raises RequestError if a request is refused."""
    random = np.random.default_rng(case.context * 31 + case.batch)
    cuda = engine.device.type == "cuda"
    for _ in range(WARM_RUNS if cuda else 1):
        first = wall_ms(_call(engine, random_requests(case, random), []), 1)
    if runs is None:
        runs = int(min(max(_ENOUGH_MS / first.median_ms, _MIN_RUNS), _MAX_RUNS))
    batches = [random_requests(case, random) for _ in range(runs)]
    answers: list[RecallResult] = []
    if cuda:
        torch.cuda.reset_peak_memory_stats(engine.device)
    times = []
    with CardWatch(engine.device) as watch:
        for batch in batches:
            times.append(wall_ms(_call(engine, batch, answers), 1).median_ms)
    return EngineRun(
        wall=Timing.of(times),
        prefill_ms=median(answer.prefill_ms for answer in answers),
        decode_ms=median(answer.decode_ms for answer in answers),
        peak_bytes=torch.cuda.max_memory_allocated(engine.device) if cuda else 0,
        card=watch.summary(),
    )


def _call(engine: RecallEngine, batch: Sequence[RecallRequest], answers: list[RecallResult]) -> Callable[[], None]:
    def call() -> None:
        for answer in engine.recall(batch):
            if not isinstance(answer, RecallResult):
                raise answer
            answers.append(answer)

    return call
