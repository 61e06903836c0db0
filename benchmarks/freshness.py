"""How soon a published change is in the answers, while serving.

``python -m benchmarks.freshness [--items N] [--deltas N] [--model NAME]``. One process serves batch after batch from a
catalog of N items that it follows in Redis; another publishes deltas, each of which adds and withdraws items, and in
middle puts a version there in full. Among the requests of every batch is one that only the next added item answers, and
one that only the next withdrawn item does. Times run from the moment at which the publisher's call returned to the
answer. The batches are timed too, before the first delta and during them.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from pydantic import SecretStr

from benchmarks.card import describe, device_name
from benchmarks.catalog_data import TAGS, random_sids
from benchmarks.engine_run import narrowed
from benchmarks.results import ReportFile, default_path
from benchmarks.shapes import SHAPES, Shape, pages_for, write_model
from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Manifest
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from catalog_sync.watcher import Watcher
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult, TagFilter
from engine.settings import EngineSettings

NAMESPACE = "freshness"
QUIET_S = 10.0
HISTORY = 160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--deltas", type=int, default=40)
    parser.add_argument("--changes", type=int, default=1_000, help="items that a delta adds, and that it withdraws")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two deltas")
    parser.add_argument("--model", default="qwen3-0.6b", choices=list(SHAPES))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--beam", type=int, default=256)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    plan = Plan(SHAPES[arguments.model], arguments.items, arguments.deltas, arguments.changes, arguments.pause)
    if arguments.publish:
        publish(plan, arguments.publish)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = ReportFile(arguments.out or default_path("freshness", device_name(device)), describe(device))
    with EmbeddedRedis() as server, tempfile.TemporaryDirectory() as directory:
        write_model(plan.shape, Path(directory), device)
        run = Serving(plan, server.url, Path(directory), arguments.batch, arguments.beam)
        print(json.dumps(report.add(run.measure(sys.argv[1:]))))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is published: ``changes`` items are added and as many withdrawn by each of so many ``deltas``."""

    shape: Shape
    items: int
    deltas: int
    changes: int
    pause: float

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.shape.codes,) * self.shape.levels

    def base(self) -> Catalog:
        """The first item that a delta withdraws has a tag of its own."""
        random = np.random.default_rng(0)
        held = random.integers(0, len(TAGS), self.items)
        tags = {tag: held == number for number, tag in enumerate(TAGS)}
        for delta in range(self.deltas):
            tags[f"old-{delta}"] = np.zeros(self.items, dtype=np.bool_)
            tags[f"old-{delta}"][delta * self.changes] = True
        sids = random_sids(self.items, self.sizes, "uniform", random)
        ids = np.arange(self.items)
        return build_catalog(version="", model=self.shape.name, sizes=self.sizes, ids=ids, sids=sids, tags=tags)

    def added(self, delta: int) -> Catalog:
        """The first one has a tag of its own."""
        random = np.random.default_rng(1 + delta)
        ids = self.items + delta * self.changes + np.arange(self.changes)
        sids = random_sids(self.changes, self.sizes, "uniform", random)
        tags = {f"new-{delta}": ids == ids[0]}
        return build_catalog(version="", model=self.shape.name, sizes=self.sizes, ids=ids, sids=sids, tags=tags)

    def withdrawn(self, delta: int) -> np.ndarray:
        return np.arange(delta * self.changes, (delta + 1) * self.changes, dtype=np.int64)


def publish(plan: Plan, url: str) -> None:
    """The publisher's process: a line of JSON for every delta, written when it is published."""
    with connect(_settings(url)) as client:
        publisher = DeltaPublisher(Publisher(client, NAMESPACE))
        helper = None
        for delta in range(plan.deltas):
            upserts, withdrawn = plan.added(delta), plan.withdrawn(delta)
            begin = time.monotonic()
            manifest, _ = publisher.publish(publisher.head(plan.shape.name), upserts, [withdrawn])
            published = time.monotonic()
            print(json.dumps({"delta": delta, "published": published, "publish_s": published - begin}), flush=True)
            if delta == plan.deltas // 2:
                helper = multiprocessing.get_context("spawn").Process(target=rebase, args=(url, manifest.version))
                helper.start()
            time.sleep(plan.pause)
        if helper is not None:
            helper.join()


def rebase(url: str, version: str) -> None:
    with connect(_settings(url)) as client:
        begin = time.monotonic()
        DeltaPublisher(Publisher(client, NAMESPACE)).rebase(version)
        print(json.dumps({"rebase_s": time.monotonic() - begin}), flush=True)


@dataclass(slots=True)
class _Seen:
    """When each delta was first in an answer: by the publisher's clock, which is the machine's."""

    added: dict[int, float] = field(default_factory=dict)
    gone: dict[int, float] = field(default_factory=dict)


class Serving:
    """Serves batch after batch from a catalog that it follows."""

    def __init__(self, plan: Plan, url: str, model: Path, batch: int, beam: int) -> None:
        self._plan, self._url, self._batch = plan, url, batch
        self._beam = BeamPolicy((beam,) * plan.shape.levels)
        settings = EngineSettings(
            model=model,
            context_pages=4 * (batch + 2) * pages_for(plan.shape.levels * HISTORY + 2),
            max_batch=batch + 2,
            max_batch_rows=(batch + 2) * beam,
            max_width=beam,
        )
        with narrowed(widths=[beam], requests=[batch + 2]):
            self._engine = RecallEngine(settings)
            self._engine.warm_up()
        self._random = np.random.default_rng(7)
        self._batches: list[tuple[float, float]] = []
        self._seen = _Seen()
        self._done = threading.Event()

    def measure(self, arguments: Sequence[str]) -> dict[str, Any]:
        with connect(_settings(self._url)) as client:
            data = blob.encode(self._plan.base())
            manifest = Manifest.of(blob.decode(data), data)
            Publisher(client, NAMESPACE).publish(manifest, data)
        with Watcher(_settings(self._url), self._engine.catalogs):
            while self._engine.catalogs.active != manifest.version:
                time.sleep(0.01)
            serving = threading.Thread(target=self._serve)
            serving.start()
            time.sleep(2.0)  # compiles and first touches
            quiet = time.monotonic()
            time.sleep(QUIET_S)
            started = time.monotonic()
            lines = list(self._published(arguments))
            deadline = time.monotonic() + 10.0
            while len(self._seen.gone) < self._plan.deltas and time.monotonic() < deadline:
                time.sleep(0.01)
            self._done.set()
            serving.join()
        return self._row(lines, quiet, started)

    def _published(self, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
        command = [sys.executable, "-m", "benchmarks.freshness", *arguments, "--publish", self._url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            yield from map(json.loads, process.stdout or ())

    def _serve(self) -> None:
        while not self._done.is_set():
            added, gone = len(self._seen.added), len(self._seen.gone)
            requests = [self._request(None) for _ in range(self._batch)]
            requests += [self._request(f"new-{added}"), self._request(f"old-{gone}")]
            begin = time.monotonic()
            *_, new, old = self._engine.recall(requests)
            end = time.monotonic()
            self._batches.append((end, end - begin))
            if not isinstance(new, RecallResult) or not isinstance(old, RecallResult):
                raise RuntimeError(f"a probe failed: {new}, {old}")
            if added < self._plan.deltas and len(new.items):
                self._seen.added[added] = end
            if gone < self._plan.deltas and not len(old.items):
                self._seen.gone[gone] = end

    def _request(self, tag: str | None) -> RecallRequest:
        return RecallRequest(
            beam=self._beam,
            top_k=min(10, self._beam.widths[-1]),
            history=self._random.integers(0, self._plan.items, HISTORY),
            filter=None if tag is None else TagFilter(any=(tag,)),
        )

    def _row(self, lines: Sequence[dict[str, Any]], quiet: float, started: float) -> dict[str, Any]:
        published = {line["delta"]: line for line in lines if "delta" in line}
        if len(self._seen.gone) < self._plan.deltas or len(self._seen.added) < self._plan.deltas:
            raise RuntimeError(f"{len(self._seen.added)} of {self._plan.deltas} deltas were seen")
        end = max(self._seen.gone.values())
        before = [seconds for at, seconds in self._batches if quiet < at <= started]
        during = [seconds for at, seconds in self._batches if started < at <= end]
        added = [self._seen.added[delta] - line["published"] for delta, line in published.items()]
        gone = [self._seen.gone[delta] - line["published"] for delta, line in published.items()]
        row: dict[str, Any] = {
            "case": f"{self._plan.items:,} items, {self._plan.changes:,} added and withdrawn by each delta",
            "model": self._plan.shape.name,
            "items": self._plan.items,
            "deltas": self._plan.deltas,
            "batch": self._batch + 2,
            "resident_bytes": self._engine.catalogs.resident_bytes(),
            "rebase_s": next((line["rebase_s"] for line in lines if "rebase_s" in line), None),
        }
        times = {
            "added": added, "withdrawn": gone, "publish": [line["publish_s"] for line in published.values()],
            "batch_before": before, "batch_during": during,
        }  # fmt: skip
        for name, seconds in times.items():
            row |= {f"{name}_ms": median(seconds) * 1e3, f"{name}_p99_ms": float(np.quantile(seconds, 0.99)) * 1e3}
            row[f"{name}_max_ms"] = max(seconds) * 1e3
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}


def _settings(url: str) -> CatalogSettings:
    return CatalogSettings(url=SecretStr(url), namespace=NAMESPACE, poll_seconds=60, guard_requests=0)


if __name__ == "__main__":
    main()
