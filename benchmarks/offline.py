"""The engine, its floors, its rivals and its ablations, in one process, case after case."""

import gc
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.ablation import ablations
from benchmarks.card import CardWatch
from benchmarks.cases import Case
from benchmarks.engine_run import (
    engine_settings,
    load_engine,
    profile_case,
    random_catalog,
    run_case,
    run_pipelined,
)
from benchmarks.flattened import fastest_flattened
from benchmarks.floor import FloorBench, Precision
from benchmarks.measure import WallLimit
from benchmarks.results import ReportFile, Row, timed
from benchmarks.rivals import load_transformers, transformers_ms
from benchmarks.shapes import Shape, write_model
from benchmarks.summary import ENGINE, PIPELINED
from engine.catalog.catalog import Catalog

_CHAIN_RUNS = 7
_TRANSFORMERS_RUNS = 2


@dataclass(frozen=True, slots=True)
class OfflineOptions:
    """``items``: of the random catalog; ``runs``: of each engine case, None for a second's worth."""

    cases: Sequence[Case]
    items: int
    precisions: Sequence[Precision] = ("bf16",)
    floors: bool = True
    flattened: bool = True
    transformers: bool = True
    ablate: bool = True
    runs: int | None = None


class Offline:
    """Writes every row to ``report`` as soon as it is there and stops between rows once ``limit`` has passed."""

    def __init__(self, options: OfflineOptions, device: torch.device, report: ReportFile, limit: WallLimit) -> None:
        self._options, self._device, self._report, self._limit = options, device, report, limit
        self._floors = FloorBench(device) if options.floors else None
        if self._floors is not None:
            report.note(copy_gb_per_s=round(self._floors.copy_bytes_per_ms / 1e6, 1))

    def run(self) -> Iterator[Row]:
        """Cases first, all models; then what else was asked for, on the first case of each model."""
        by_shape: dict[Shape, list[Case]] = {}
        for case in self._options.cases:
            by_shape.setdefault(case.shape, []).append(case)
        with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
            for shape, cases in by_shape.items():
                if self._limit.passed:
                    return
                model = write_model(shape, Path(scratch) / shape.name, self._device)
                catalog = random_catalog(shape.name, (shape.codes,) * shape.levels, self._options.items)
                yield from self._cases(cases, model, catalog)
                yield from self._rivals(cases, model)
                yield from self._ablations(cases[0], model, catalog)

    def _cases(self, cases: Sequence[Case], model: Path, catalog: Catalog) -> Iterator[Row]:
        begin = perf_counter()
        engine = load_engine(engine_settings(model, cases, self._device), catalog)
        self._report.note(load_and_warm_up_s=round(perf_counter() - begin, 2), engine=engine.stats())
        for case in cases:
            if self._limit.passed:
                return
            yield self._report.add(run_case(engine, case, self._options.runs).row(ENGINE, case))
            yield self._report.add(run_pipelined(engine, case, self._options.runs).row(PIPELINED, case))
            yield from self._floor_rows(case)
            if self._device.type == "cuda":
                phases = profile_case(engine, case)
                total = sum(ms for phase in phases.values() for ms in phase.values())
                profiled = {"what": "profile", **case.fields(), "ms": round(total, 4), "phases_ms": phases}
                yield self._report.add(profiled)
            _release(self._device)

    def _floor_rows(self, case: Case) -> Iterator[Row]:
        if self._floors is None:
            return
        for precision in self._options.precisions:
            floor = self._floors.floor(case, precision)
            parts = {name: round(getattr(floor, name), 4) for name in FLOOR_PARTS}
            row = {"what": f"{precision} floor", **case.fields(), "ms": round(floor.total, 4), **parts}
            yield self._report.add({**row, "backends": floor.backends, "kinds": floor.kinds})
            with CardWatch(self._device) as watch:
                timing = self._floors.chained(case, floor, precision, _CHAIN_RUNS)
            chained = timed(f"{precision} chained floor", case.fields(), timing, card=watch.summary())
            yield self._report.add({**chained, "with_elementwise_ms": round(timing.median_ms + floor.elementwise, 4)})

    def _rivals(self, cases: Sequence[Case], model: Path) -> Iterator[Row]:
        if self._options.flattened and self._floors is not None:
            for case in cases:
                if self._limit.passed:
                    return
                flattened = fastest_flattened(case, self._device, self._floors.dtype)
                floor = self._floors.floor(case, "bf16")
                timing = self._floors.chained(case, floor, "bf16", _CHAIN_RUNS, flattened)
                row = timed("flattened beams", case.fields(), timing, attention=flattened.name)
                yield self._report.add({**row, "attention_ms_a_layer": flattened.tried})
                _release(self._device)
        if self._options.transformers and not self._limit.passed:
            rival = load_transformers(model, self._device)
            timing_or_reason = transformers_ms(rival, cases[0], _TRANSFORMERS_RUNS)
            if isinstance(timing_or_reason, str):
                yield self._report.add({"what": "transformers", **cases[0].fields(), "error": timing_or_reason})
            else:
                yield self._report.add(timed("transformers", cases[0].fields(), timing_or_reason))
            del rival
            _release(self._device)

    def _ablations(self, case: Case, model: Path, catalog: Catalog) -> Iterator[Row]:
        if not self._options.ablate:
            return
        for ablation in ablations(self._device.type == "cuda"):
            if self._limit.passed:
                return
            changed = ablation.change(case)
            settings = engine_settings(model, [changed], self._device, **ablation.settings)
            against, measure = (PIPELINED, run_pipelined) if ablation.pipelined else (ENGINE, run_case)
            with ablation.patch():
                run = measure(load_engine(settings, catalog), changed, self._options.runs)
            row = run.row(f"engine without {ablation.name}", changed)
            yield self._report.add({**row, "of": case.name, "against": against})
            _release(self._device)


FLOOR_PARTS = (
    "prefill_products",
    "prefill_attention",
    "decode_products",
    "decode_attention",
    "head",
    "elementwise",
)


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
