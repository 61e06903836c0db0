"""Catalogs of 10,000 to 10,000,000 items from an item table to a version that serves, beside moving their bytes.

``python -m benchmarks.catalog_scale [--items 10000,10000000] [--out FILE]``. Three levels of 8,192 codes, int64 ids and
16 tags of which an item holds two; some once more with string ids and a title. The build runs in a process of its own,
whose peak of memory is given. *Floor*: what the step cannot do without (to write and read the bytes in Redis, to hash
them, to copy them to the device), done alone.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any, TypeVar

import numpy as np
import redis
import torch
from pydantic import SecretStr

from benchmarks.card import describe, device_name
from benchmarks.catalog_data import SID_SHAPES, SidShape, string_ids, write_table
from benchmarks.results import ReportFile, default_path
from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fetch import fetch_blob
from catalog_sync.layout import Keys, Manifest, chunks_of
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from catalog_sync.source import load_source
from catalog_sync.watcher import Watcher
from engine.catalog.catalog import Catalog
from engine.catalog.resident import ResidentCatalog
from engine.catalog.store import CatalogStore
from engine.catalog.trie import trie_tensors

SIZES = (8_192, 8_192, 8_192)
MODEL = "bench"
LOOKUP_IDS, LOOKUP_RUNS = 5_000, 31
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default="10000,100000,1000000,10000000")
    parser.add_argument("--strings", default="1000000,10000000", help="of them once more with string ids")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--build", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        print(json.dumps(build(*arguments.build)))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = ReportFile(arguments.out or default_path("catalog_scale", device_name(device)), describe(device))
    with EmbeddedRedis() as server, tempfile.TemporaryDirectory() as directory:
        sizes = list(map(int, arguments.items.split(",")))
        cases: list[tuple[int, SidShape, bool]] = [(n, shape, False) for n in sizes for shape in SID_SHAPES]
        cases += [(int(items), "uniform", True) for items in arguments.strings.split(",") if items]
        for items, shape, strings in cases:
            row = measure(items, shape, strings, device, server, Path(directory))
            print(json.dumps(report.add(row)), flush=True)


def measure(
    items: int, shape: SidShape, strings: bool, device: torch.device, server: EmbeddedRedis, directory: Path
) -> dict[str, Any]:
    """Every step of one catalog."""
    table, file = directory / "items.parquet", directory / "items.rsc"
    write_table(table, items, SIZES, shape, strings=strings)
    command = [sys.executable, "-m", "benchmarks.catalog_scale", "--build", str(table), str(file)]
    built = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    data = blob.read_file(file)
    case = f"{items:,} items, {shape}{', string ids and titles' if strings else ''}"
    row: dict[str, Any] = {"case": case, "items": items, "shape": shape, "strings": strings, **built}
    row["blob_bytes_per_item"] = len(data) / items
    row |= on_redis(data, device, server)
    row |= in_memory(data, strings, device)
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def build(table: Path, file: Path) -> dict[str, Any]:
    """What ``recallstream catalog build`` does."""
    begin, cpu = time.perf_counter(), time.process_time()
    catalog = load_source(table, model=MODEL, sizes=SIZES)
    loaded = time.perf_counter()
    blob.write_file(file, blob.encode(catalog))
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {
        "build_s": time.perf_counter() - begin,
        "build_cpu_s": time.process_time() - cpu,
        "encode_s": time.perf_counter() - loaded,
        "build_peak_bytes": int(peak.split()[1]) * 1024,
        "leaves": catalog.leaves,
    }


def on_redis(data: bytes, device: torch.device, server: EmbeddedRedis) -> dict[str, Any]:
    """Publish, then publish to active in an instance that watches, both beside their floors."""
    settings = CatalogSettings(url=SecretStr(server.url), namespace="bench", poll_seconds=60)
    with connect(settings) as client:
        client.flushall()
        floor = redis_floor(client, data, device)
        manifest = Manifest.of(blob.decode(data), data)
        store = CatalogStore(device, MODEL, SIZES)
        publisher, keys = Publisher(client, settings.namespace), Keys(settings.namespace)
        with Watcher(settings, store):
            publish_s, _ = timed(lambda: publisher.publish(manifest, data))
            active_s, _ = timed(lambda: wait_for(lambda: store.active == manifest.version))
        fetch_s, fetched = timed(lambda: fetch_blob(client, keys, manifest, Event()))
        decode_s, _ = timed(lambda: blob.decode(fetched, manifest.version))
    return {"publish_s": publish_s, "active_s": active_s, "fetch_s": fetch_s, "decode_s": decode_s, **floor}


def redis_floor(client: redis.Redis, data: bytes, device: torch.device) -> dict[str, float]:
    """Bytes through Redis and back, through a hash, and onto the device."""
    chunks = chunks_of(data, 4 << 20)
    write_s, _ = timed(lambda: [client.set(f"floor:{number}", chunk) for number, chunk in enumerate(chunks)])
    read_s, _ = timed(lambda: [client.get(f"floor:{number}") for number in range(len(chunks))])
    hash_s, _ = timed(lambda: hashlib.sha256(data).hexdigest())
    client.flushall()
    raw = np.frombuffer(data, dtype=np.uint8)
    upload_s, _ = timed(lambda: torch.tensor(raw, device=device).sum().item())
    return {"publish_floor_s": write_s + read_s + hash_s, "active_floor_s": read_s + hash_s + upload_s}


def in_memory(data: bytes, strings: bool, device: torch.device) -> dict[str, Any]:
    """Stage, activate, memory, the trie alone, look-ups."""
    catalog = blob.decode(data)
    store = CatalogStore(device, MODEL, SIZES)
    stage_s, resident = timed(lambda: store.stage(catalog))
    activate_s, _ = timed(lambda: store.activate(catalog.version))
    sids = resident.base.sids()
    trie_s = median(timed(lambda: settled(lambda: trie_tensors(sids), device))[0] for _ in range(5))
    lookups = lookup_ms(resident, catalog, strings)
    return {
        "stage_s": stage_s,
        "activate_us": activate_s * 1e6,
        "trie_ms": trie_s * 1e3,
        "lookup_ms": lookups,
        "device_bytes_per_item": store.resident_bytes() / catalog.items,
        "host_bytes_per_item": (len(data) + resident.index_bytes) / catalog.items,
    }


def lookup_ms(resident: ResidentCatalog, catalog: Catalog, strings: bool) -> float:
    """Median milliseconds for 5,000 ids, nine of ten known."""
    random = np.random.default_rng(1)
    times = []
    for _ in range(LOOKUP_RUNS):
        numbers = random.integers(0, catalog.items * 10 // 9, LOOKUP_IDS)
        asked = string_ids(numbers).to_pylist() if strings else numbers
        begin = time.perf_counter()
        resident.lookup(asked)
        times.append(time.perf_counter() - begin)
    return median(times) * 1e3


def settled(work: Callable[[], T], device: torch.device) -> T:
    value = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return value


def timed(work: Callable[[], T]) -> tuple[float, T]:
    begin = time.perf_counter()
    value = work()
    return time.perf_counter() - begin, value


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the version did not become active")
        time.sleep(0.0005)


if __name__ == "__main__":
    main()
