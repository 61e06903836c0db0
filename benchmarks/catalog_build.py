"""Seconds to build a catalog of a million items, and to look up ids in it.

``python -m benchmarks.catalog_build [--items N] [--save]``. Random SIDs over three levels of 256, a tag, a rank and a
title each. The target for a million items, file to catalog, is 5 s.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from catalog_sync import blob
from catalog_sync.source import load_source
from engine.catalog.resident import ResidentCatalog

RESULTS = Path(__file__).parent / "results" / "catalog_build.json"
SIZES = (256, 256, 256)
LOOKUP_IDS = 5_000
LOOKUP_RUNS = 51

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--save", action="store_true", help=f"write the result to {RESULTS.name}")
    arguments = parser.parse_args()
    result = measure(arguments.items)
    print(json.dumps(result, indent=2))
    if arguments.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def measure(items: int) -> dict[str, object]:
    """Wall and CPU seconds of each step, median milliseconds of a look-up."""
    with tempfile.TemporaryDirectory() as directory:
        lines, parquet = Path(directory) / "items.jsonl", Path(directory) / "items.parquet"
        write_table(items, lines, parquet)
        steps: dict[str, dict[str, float]] = {}
        timed(steps, "build_from_json_lines", lambda: load_source(lines, model="m", sizes=SIZES))
        catalog = timed(steps, "build_from_parquet", lambda: load_source(parquet, model="m", sizes=SIZES))
    data = timed(steps, "encode", lambda: blob.encode(catalog))
    timed(steps, "decode_and_verify", lambda: blob.decode(data))
    resident = timed(steps, "make_resident", lambda: ResidentCatalog(catalog, torch.device("cpu")))
    return {
        "items": items,
        "leaves": catalog.trie.leaves,
        "blob_bytes": len(data),
        "machine": f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
        "steps": steps,
        f"lookup_{LOOKUP_IDS}_ids_ms": round(lookup_ms(resident, items), 3),
    }


def write_table(items: int, lines: Path, parquet: Path) -> None:
    random = np.random.default_rng(0)
    sids = random.integers(0, SIZES[0], (items, len(SIZES)))
    columns = {
        "item_id": random.permutation(items),
        "sid": sids.tolist(),
        "tags": [[f"genre-{i % 18}"] for i in range(items)],
        "rank": np.arange(items) * 0.5,
        "title": [f"Title of item {i}" for i in range(items)],
    }
    table = pa.table(columns)
    pq.write_table(table, parquet)
    with lines.open("w") as file:
        for batch in table.to_batches(max_chunksize=65_536):
            file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())


def timed(steps: dict[str, dict[str, float]], name: str, work: Callable[[], T]) -> T:
    wall, cpu = time.perf_counter(), time.process_time()
    value = work()
    steps[name] = {
        "wall_s": round(time.perf_counter() - wall, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
    }
    return value


def lookup_ms(resident: ResidentCatalog, items: int) -> float:
    random = np.random.default_rng(1)
    times = []
    for _ in range(LOOKUP_RUNS):
        ids = random.integers(0, items, LOOKUP_IDS)
        begin = time.perf_counter()
        resident.lookup(ids)
        times.append(time.perf_counter() - begin)
    return median(times) * 1e3


if __name__ == "__main__":
    main()
