"""The engine, its floors, its rivals and its ablations, in one process, case after case."""

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.ablation import Ablation, ablations
from benchmarks.card import CardWatch
from benchmarks.cases import Case
from benchmarks.engine_run import (
    engine_settings,
    graphs_of,
    load_engine,
    profile_case,
    random_catalog,
    run_case,
    run_pipelined,
    same_alone,
)
from benchmarks.flattened import fastest_flattened
from benchmarks.floor import Floor, FloorBench
from benchmarks.measure import WallLimit
from benchmarks.results import ReportFile, Row
from benchmarks.rivals import load_transformers, transformers_ms
from benchmarks.shapes import Shape, write_model
from benchmarks.summary import (
    CHAINED,
    ENGINE,
    FLATTENED,
    FLOOR,
    FREE,
    PIPELINED,
    PROFILE,
    SAME_ALONE,
    TRANSFORMERS,
)
from benchmarks.unconstrained import FreeSelection
from engine.catalog.catalog import Catalog
from engine.errors import RecallstreamError
from engine.recall_engine import RecallEngine

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
    """What is run beside the engine. ``items``: of the random catalog; ``runs``: of each case, None: a second's worth.

    ``chained``, ``flattened``: need the floors. ``tight``: pools for one batch, which shows what memory is needed.
    """

    cases: Sequence[Case]
    items: int
    floors: bool = True
    chained: bool = True
    flattened: bool = True
    transformers: bool = True
    free: bool = True
    ablate: bool = True
    profile: bool = True
    tight: bool = False
    runs: int | None = None


Work = Iterator[tuple[str, Case, Callable[[], Row]]]
"""What it is called, its case, and what gives its row."""


class Offline:
    """Writes every row to ``report`` as soon as it is there and stops between rows once ``limit`` has passed.

    What does not run (out of memory, say) gets a row with the ``error``, and the rest goes on.
    """

    def __init__(self, options: OfflineOptions, device: torch.device, report: ReportFile, limit: WallLimit) -> None:
        self._options, self._device, self._report, self._limit = options, device, report, limit
        self._cuda = device.type == "cuda"
        self._floors: dict[Case, Floor] = {}
        self._floor_bench = FloorBench(device) if options.floors else None
        if self._floor_bench is not None:
            report.note(copy_gb_per_s=round(self._floor_bench.copy_bytes_per_ms / 1e6, 1))

    def run(self) -> Iterator[Row]:
        """Model by model: its cases in each precision, then rivals, then ablations of its first case."""
        by_shape: dict[Shape, list[Case]] = {}
        for case in self._options.cases:
            by_shape.setdefault(case.shape, []).append(case)
        with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
            for shape, cases in by_shape.items():
                if self._limit.passed:
                    return
                begin = perf_counter()
                model = write_model(shape, Path(scratch) / shape.name, self._device)
                catalog = random_catalog(shape.name, (shape.codes,) * shape.levels, self._options.items)
                self._report.note(model_and_catalog_s=round(perf_counter() - begin, 2))
                for _, group in groupby(cases, key=lambda case: case.precision):
                    yield from self._rows(self._cases(list(group), model, catalog))
                yield from self._rows(self._free(cases, model, catalog))
                yield from self._rows(self._rivals(cases, model))
                yield from self._rows(self._ablations(cases[0], model, catalog))

    def _rows(self, work: Work) -> Iterator[Row]:
        """Run one piece of work after another."""
        for what, case, make in work:
            if self._limit.passed:
                return
            try:
                row = {"what": what, **case.fields(), **make()}
            except (RuntimeError, RecallstreamError) as error:
                row = {"what": what, **case.fields(), "error": " ".join(str(error).split())[:_ERROR_LETTERS]}
            yield self._report.add(row)
            self._release()

    def _cases(self, cases: Sequence[Case], model: Path, catalog: Catalog) -> Work:
        """Times of all cases first, then what is looked at beside them."""
        begin = perf_counter()
        try:
            with graphs_of(cases):
                flights = 1 if self._options.tight else 2
                engine = load_engine(engine_settings(model, cases, self._device, flights), catalog)
        except (RuntimeError, RecallstreamError, ValueError) as error:
            yield ENGINE, cases[0], partial(_fail, error)
            return
        self._report.note(load_and_warm_up_s=round(perf_counter() - begin, 2), engine=engine.stats())
        for case in cases:
            yield ENGINE, case, lambda case=case: self._engine_row(engine, case)  # type: ignore[misc]  # bound now
            if not self._options.tight:
                yield PIPELINED, case, lambda case=case: run_pipelined(engine, case, self._options.runs).row()  # type: ignore[misc]
            if self._options.floors:
                yield FLOOR, case, partial(self._floor_row, case)
            if self._options.floors and self._options.chained:
                yield CHAINED, case, partial(self._chained_row, case)
        for case in cases:
            if case.batch > 1:
                yield SAME_ALONE, case, lambda case=case: {"share": same_alone(engine, case)}  # type: ignore[misc]
            if self._cuda and self._options.profile:
                yield PROFILE, case, lambda case=case: {"phases_ms": profile_case(engine, case)}  # type: ignore[misc]

    def _engine_row(self, engine: RecallEngine, case: Case) -> Row:
        row = run_case(engine, case, self._options.runs).row()
        return row | {"tight": True} if self._options.tight else row

    def _free(self, cases: Sequence[Case], model: Path, catalog: Catalog) -> Work:
        """The same engine without a constraint, and with it again, close in time."""
        cases = [case for case in cases if case.precision == "bf16" and case.score == "level"]
        if not self._options.free or not cases:
            return
        settings = engine_settings(model, cases, self._device)
        selection = FreeSelection(cases[0].shape.codes, self._device)
        with graphs_of(cases):
            bound = load_engine(settings, catalog)
            with selection.in_place():
                free = load_engine(settings, catalog)
        for case in cases:

            def make(case: Case = case) -> Row:
                with selection.in_place():
                    row = run_case(free, case, self._options.runs).row()
                return row | {"with_it_ms": round(run_case(bound, case, self._options.runs).wall.median_ms, 4)}

            yield FREE, case, make

    def _rivals(self, cases: Sequence[Case], model: Path) -> Work:
        if self._options.flattened and self._options.floors:
            for case in (case for case in cases if isinstance(case.beam, int) and case.precision == "bf16"):
                yield FLATTENED, case, partial(self._flattened_row, case)
        if self._options.transformers:
            yield TRANSFORMERS, cases[0], partial(self._transformers_row, cases[0], model)

    def _ablations(self, case: Case, model: Path, catalog: Catalog) -> Work:
        for ablation in ablations(self._cuda) if self._options.ablate else ():
            changed = ablation.change(case)
            make = partial(self._ablation_row, ablation, changed, model, catalog)
            against = PIPELINED if ablation.pipelined else ENGINE
            yield (
                f"engine without {ablation.name}",
                changed,
                lambda make=make, against=against: make() | {"of": case.name, "against": against},  # type: ignore[misc]
            )

    def _floor(self, case: Case) -> tuple[FloorBench, Floor]:
        if self._floor_bench is None:
            raise RuntimeError("the floors are not timed in this run")
        if case not in self._floors:
            self._floors[case] = self._floor_bench.floor(case)
        return self._floor_bench, self._floors[case]

    def _floor_row(self, case: Case) -> Row:
        _, floor = self._floor(case)
        parts = {name: round(getattr(floor, name), 4) for name in FLOOR_PARTS}
        return {"ms": round(floor.total, 4), **parts, "backends": floor.backends, "kinds": floor.kinds}

    def _chained_row(self, case: Case) -> Row:
        bench, floor = self._floor(case)
        with CardWatch(self._device) as watch:
            timing = bench.chained(case, floor, _CHAIN_RUNS)
        both = round(timing.median_ms + floor.elementwise, 4)
        return {**timing.row(), "with_elementwise_ms": both, "card": watch.summary()}

    def _flattened_row(self, case: Case) -> Row:
        bench, floor = self._floor(case)
        flattened = fastest_flattened(case, self._device, bench.dtype)
        timing = bench.chained(case, floor, _CHAIN_RUNS, flattened)
        return {**timing.row(), "attention": flattened.name, "attention_ms_a_layer": flattened.tried}

    def _transformers_row(self, case: Case, model: Path) -> Row:
        return transformers_ms(load_transformers(model, self._device), case, _TRANSFORMERS_RUNS).row()

    def _ablation_row(self, ablation: Ablation, case: Case, model: Path, catalog: Catalog) -> Row:
        settings = engine_settings(model, [case], self._device, **ablation.settings)
        measure = run_pipelined if ablation.pipelined else run_case
        with ablation.patch(), graphs_of([case]):
            return measure(load_engine(settings, catalog), case, self._options.runs).row()

    def _release(self) -> None:
        gc.collect()
        if self._cuda:
            torch.cuda.empty_cache()


def _fail(error: Exception) -> Row:
    raise RecallstreamError(str(error)) from error
