"""What filters and exclusions cost a request.

``python -m benchmarks.filters [--items N] [--model NAME]``. One request against a catalog of N items with 16 tags that
a sixteenth of the items hold each, and rare ones that a thousand items hold. First alone: to count the live items of a
filter never seen before. Then whole requests, one at a time: without a filter; with one that is cached; with a fresh
one; each with 0 to 1,000 excluded items. Answers are checked against their filter and their exclusions.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations, islice, repeat
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.card import describe, device_name
from benchmarks.catalog_data import TAGS, random_sids
from benchmarks.engine_run import load_engine, narrowed
from benchmarks.results import ReportFile, default_path
from benchmarks.shapes import SHAPES, Shape, pages_for, write_model
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.catalog.resident import ResidentCatalog
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult, TagFilter
from engine.settings import EngineSettings

EXCLUSIONS = (0, 10, 100, 1_000)
HISTORY = 160
RARE_TAGS, RARE_HOLDERS = 64, 1_000
RUNS = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--model", default="qwen3-0.6b", choices=list(SHAPES))
    parser.add_argument("--beam", type=int, default=256)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.model]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    head = {**describe(device), "items": arguments.items, "model": shape.name, "beam": arguments.beam}
    report = ReportFile(arguments.out or default_path("filters", device_name(device)), head)
    catalog = tagged_catalog(shape, arguments.items)
    with tempfile.TemporaryDirectory() as directory:
        write_model(shape, Path(directory), device)
        settings = EngineSettings(
            model=Path(directory),
            context_pages=4 * pages_for(shape.levels * HISTORY + 2),
            max_batch=1,
            max_batch_rows=arguments.beam,
            max_width=arguments.beam,
        )
        with narrowed(widths=[arguments.beam], requests=[1]):
            engine = load_engine(settings, catalog)
        for kind, row in measure(engine, catalog, arguments.beam):
            print(json.dumps(report.add({"what": kind, **row})), flush=True)


def tagged_catalog(shape: Shape, items: int) -> Catalog:
    random = np.random.default_rng(0)
    held = random.integers(0, len(TAGS), items)
    tags = {tag: held == number for number, tag in enumerate(TAGS)}
    for number in range(RARE_TAGS):
        tags[rare(number)] = np.zeros(items, dtype=np.bool_)
        tags[rare(number)][random.integers(0, items, RARE_HOLDERS)] = True
    sizes = (shape.codes,) * shape.levels
    sids = random_sids(items, sizes, "uniform", random)
    return build_catalog(version="v", model=shape.name, sizes=sizes, ids=np.arange(items), sids=sids, tags=tags)


def rare(number: int) -> str:
    return f"rare-{number}"


def fresh_filters(kind: str) -> Iterator[TagFilter]:
    """Filters of a kind, no two of which select the same items."""
    if kind == "rare":
        yield from (TagFilter(any=pair) for pair in combinations(map(rare, range(RARE_TAGS)), 2))
    elif kind == "any of three":
        yield from (TagFilter(any=three) for three in combinations(TAGS, 3))
    else:
        yield from (TagFilter(none=three) for three in combinations(TAGS, 3))


KINDS = ("any of three", "none of three", "rare")


def measure(engine: RecallEngine, catalog: Catalog, beam: int) -> Iterator[tuple[str, dict[str, object]]]:
    fresh = {kind: fresh_filters(kind) for kind in KINDS}
    with engine.catalogs.pin() as resident:
        for kind, filters in fresh.items():
            yield "count", {"filter": kind, "ms": round(count_ms(resident, filters), 4)}
        checker = Checker(resident, catalog)
        random = np.random.default_rng(5)
        for excluded in EXCLUSIONS:
            choices: dict[str, Iterator[TagFilter | None]] = {"none": repeat(None)}
            for kind, filters in fresh.items():
                choices |= {f"{kind}, cached": repeat(next(filters)), f"{kind}, fresh": filters}
            for name, choice in choices.items():
                times = []
                for run in range(RUNS + 3):
                    request = a_request(next(choice), excluded, catalog, beam, random)
                    begin = time.perf_counter()
                    (answer,) = engine.recall([request])
                    times.append(time.perf_counter() - begin)
                    if run < 3 or "fresh" in name:
                        checker.check(request, answer)
                row = {"filter": name, "excluded": excluded, "ms": median(times[3:]) * 1e3, "min_ms": min(times) * 1e3}
                yield "request", {key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}


def a_request(
    tags: TagFilter | None, excluded: int, catalog: Catalog, beam: int, random: np.random.Generator
) -> RecallRequest:
    return RecallRequest(
        beam=BeamPolicy((beam,) * len(catalog.sizes)),
        top_k=min(beam, 100),
        history=random.integers(0, catalog.items, HISTORY),
        exclude=random.integers(0, catalog.items, excluded),
        filter=tags,
    )


class Checker:
    """That an answer holds what its filter and its exclusions let through, and is not cut short."""

    def __init__(self, resident: ResidentCatalog, catalog: Catalog) -> None:
        self._resident, self._catalog = resident, catalog

    def check(self, request: RecallRequest, answer: object) -> None:
        if not isinstance(answer, RecallResult):
            raise RuntimeError(f"{request.filter}: {answer}")
        items: NDArray[np.int64] = np.asarray(answer.items)
        rows = self._resident.lookup(items)
        if not self._resident.passes(rows, request.filter).all() or np.isin(items, request.exclude).any():
            raise RuntimeError(f"{request.filter}: an item that does not pass")
        if request.filter is not None and not self._holds(request.filter, rows):
            raise RuntimeError(f"{request.filter}: an item without its tags")
        if not len(items) or (len(items) < request.top_k and len(items) < max(request.beam.widths)):
            raise RuntimeError(
                f"{request.filter}: {len(items)} items, {self._resident.live_total(request.filter)} live"
            )

    def _holds(self, tags: TagFilter, rows: NDArray[np.int32]) -> bool:
        held = [self._catalog.tags.held_by(tag, rows) for tag in (*tags.any, *tags.none)]
        return bool(np.any(held, axis=0).all()) if tags.any else not np.any(held)


def count_ms(resident: ResidentCatalog, filters: Iterator[TagFilter]) -> float:
    """Median of counting the items of filters never seen before."""
    times = []
    for tags in islice(filters, RUNS):
        begin = time.perf_counter()
        resident.live_total(tags)
        times.append(time.perf_counter() - begin)
    return median(times) * 1e3


if __name__ == "__main__":
    main()
