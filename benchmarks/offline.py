"""The engine, its floors, its rivals and its ablations, in one process, case after case."""

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.ablation import Ablation, ablations
from benchmarks.card import CardWatch
from benchmarks.cases import Case
from benchmarks.engine_run import (
    engine_settings,
    load_engine,
    profile_case,
    random_catalog,
    run_case,
    run_pipelined,
    same_alone,
)
from benchmarks.flattened import fastest_flattened
from benchmarks.floor import Floor, FloorBench, Precision
from benchmarks.measure import WallLimit
from benchmarks.results import ReportFile, Row
from benchmarks.rivals import load_transformers, transformers_ms
from benchmarks.shapes import Shape, write_model
from benchmarks.summary import ENGINE, FLATTENED, PIPELINED, SAME_ALONE, TRANSFORMERS
from engine.catalog.catalog import Catalog
from engine.errors import RecallstreamError

_CHAIN_RUNS = 7
_TRANSFORMERS_RUNS = 2
_ERROR_LETTERS = 200

FLOOR_PARTS = (
    "prefill_products",
    "prefill_attention",
    "decode_products",
    "decode_attention",
    "head",
    "elementwise",
)


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
    """Writes every row to ``report`` as soon as it is there and stops between rows once ``limit`` has passed.

    What does not run (out of memory, say) gets a row with the ``error``, and the rest goes on.
    """

    def __init__(self, options: OfflineOptions, device: torch.device, report: ReportFile, limit: WallLimit) -> None:
        self._options, self._device, self._report, self._limit = options, device, report, limit
        self._cuda = device.type == "cuda"
        self._floors: dict[tuple[Case, Precision], Floor] = {}
        self._floor_bench = FloorBench(device) if options.floors else None
        if self._floor_bench is not None:
            report.note(copy_gb_per_s=round(self._floor_bench.copy_bytes_per_ms / 1e6, 1))

    def run(self) -> Iterator[Row]:
        """Model by model: its cases, then rivals, then ablations of its first case."""
        by_shape: dict[Shape, list[Case]] = {}
        for case in self._options.cases:
            by_shape.setdefault(case.shape, []).append(case)
        with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
            for shape, cases in by_shape.items():
                if self._limit.passed:
                    return
                model = write_model(shape, Path(scratch) / shape.name, self._device)
                catalog = random_catalog(shape.name, (shape.codes,) * shape.levels, self._options.items)
                yield from self._rows(self._cases(cases, model, catalog))
                yield from self._rows(self._rivals(cases, model))
                yield from self._rows(self._ablations(cases[0], model, catalog))

    def _rows(self, work: Iterator[tuple[str, Case, Callable[[], Row]]]) -> Iterator[Row]:
        """Run one piece of work after another: what it is called, its case, and what gives its row."""
        for what, case, make in work:
            if self._limit.passed:
                return
            try:
                row = {"what": what, **case.fields(), **make()}
            except (RuntimeError, RecallstreamError) as error:
                row = {"what": what, **case.fields(), "error": " ".join(str(error).split())[:_ERROR_LETTERS]}
            yield self._report.add(row)
            self._release()

    def _cases(
        self, cases: Sequence[Case], model: Path, catalog: Catalog
    ) -> Iterator[tuple[str, Case, Callable[[], Row]]]:
        begin = perf_counter()
        engine = load_engine(engine_settings(model, cases, self._device), catalog)
        self._report.note(load_and_warm_up_s=round(perf_counter() - begin, 2), engine=engine.stats())
        runs = self._options.runs
        for case in cases:
            yield ENGINE, case, lambda case=case: run_case(engine, case, runs).row()  # type: ignore[misc]  # bound now
            yield PIPELINED, case, lambda case=case: run_pipelined(engine, case, runs).row()  # type: ignore[misc]
            for precision in self._options.precisions if self._options.floors else ():
                yield f"{precision} floor", case, partial(self._floor_row, case, precision)
                yield f"{precision} chained floor", case, partial(self._chained_row, case, precision)
            if case.batch > 1:
                yield SAME_ALONE, case, lambda case=case: {"share": same_alone(engine, case)}  # type: ignore[misc]
            if self._cuda:
                yield "profile", case, lambda case=case: {"phases_ms": profile_case(engine, case)}  # type: ignore[misc]

    def _rivals(self, cases: Sequence[Case], model: Path) -> Iterator[tuple[str, Case, Callable[[], Row]]]:
        if self._options.flattened and self._options.floors:
            for case in (case for case in cases if isinstance(case.beam, int)):
                yield FLATTENED, case, partial(self._flattened_row, case)
        if self._options.transformers:
            yield TRANSFORMERS, cases[0], partial(self._transformers_row, cases[0], model)

    def _ablations(self, case: Case, model: Path, catalog: Catalog) -> Iterator[tuple[str, Case, Callable[[], Row]]]:
        for ablation in ablations(self._cuda) if self._options.ablate else ():
            changed = ablation.change(case)
            make = partial(self._ablation_row, ablation, changed, model, catalog)
            against = PIPELINED if ablation.pipelined else ENGINE
            yield (
                f"engine without {ablation.name}",
                changed,
                lambda make=make, against=against: make() | {"of": case.name, "against": against},  # type: ignore[misc]
            )

    def _floor(self, case: Case, precision: Precision) -> tuple[FloorBench, Floor]:
        if self._floor_bench is None:
            raise RuntimeError("the floors are not timed in this run")
        if (case, precision) not in self._floors:
            self._floors[case, precision] = self._floor_bench.floor(case, precision)
        return self._floor_bench, self._floors[case, precision]

    def _floor_row(self, case: Case, precision: Precision) -> Row:
        _, floor = self._floor(case, precision)
        parts = {name: round(getattr(floor, name), 4) for name in FLOOR_PARTS}
        return {"ms": round(floor.total, 4), **parts, "backends": floor.backends, "kinds": floor.kinds}

    def _chained_row(self, case: Case, precision: Precision) -> Row:
        bench, floor = self._floor(case, precision)
        with CardWatch(self._device) as watch:
            timing = bench.chained(case, floor, precision, _CHAIN_RUNS)
        both = round(timing.median_ms + floor.elementwise, 4)
        return {**timing.row(), "with_elementwise_ms": both, "card": watch.summary()}

    def _flattened_row(self, case: Case) -> Row:
        bench, floor = self._floor(case, "bf16")
        flattened = fastest_flattened(case, self._device, bench.dtype)
        timing = bench.chained(case, floor, "bf16", _CHAIN_RUNS, flattened)
        return {**timing.row(), "attention": flattened.name, "attention_ms_a_layer": flattened.tried}

    def _transformers_row(self, case: Case, model: Path) -> Row:
        return transformers_ms(load_transformers(model, self._device), case, _TRANSFORMERS_RUNS).row()

    def _ablation_row(self, ablation: Ablation, case: Case, model: Path, catalog: Catalog) -> Row:
        settings = engine_settings(model, [case], self._device, **ablation.settings)
        measure = run_pipelined if ablation.pipelined else run_case
        with ablation.patch():
            return measure(load_engine(settings, catalog), case, self._options.runs).row()

    def _release(self) -> None:
        gc.collect()
        if self._cuda:
            torch.cuda.empty_cache()
