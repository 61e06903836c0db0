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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import SecretStr

from benchmarks.card import describe, device_name
from benchmarks.engine_run import results
from benchmarks.judged_load import Oracle, Plan, Service, wait_for
from benchmarks.results import ReportFile, default_path
from benchmarks.shapes import SHAPES, write_model
from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Manifest
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from catalog_sync.watcher import Watcher
from consumer.service.garbage import settle
from engine.recall_engine import RecallEngine

VERSIONS = 6
"""They take turns: with two resident, every swap fetches and stages."""

QUIET = 0.05
"""Share of the time with swaps that the load runs without them, before and again after."""

P99_BOUND = 1.2


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
                capacity = service.closed_loop(max(3.0, plan.seconds / 60))
                rate = plan.share * capacity.done / capacity.seconds
                quiet_s = max(1.0, plan.seconds * QUIET)
                service.oracle = oracle
                before = service.at_random(rate, quiet_s, seed=1)
                activated = watcher.snapshot().activated
                with Swapper(publisher, names, plan.every) as swapper:
                    swaps = service.at_random(rate, plan.seconds, seed=2)
                activated = watcher.snapshot().activated - activated
                after = service.at_random(rate, quiet_s, seed=3)
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
