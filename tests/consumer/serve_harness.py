"""``recallstream serve`` as a process of the test's own: a tiny model, a mock broker, an embedded Redis."""

import asyncio
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from confluent_kafka import Producer
from numpy.typing import NDArray

from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.layout import Manifest
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from consumer.client import RecallClient, RecallReply
from consumer.stream.settings import KafkaSettings
from consumer.wire.outgoing import encode_request
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.settings import EngineSettings
from tests.consumer.waiting import eventually
from tests.engine.tiny_models import TinyModel

MODEL = TinyModel(sizes=(6, 5, 4))
ITEMS = np.arange(100, 160)
START_S = 60.0
"""Importing torch takes its time where other tests run too."""
QUICK_GROUP = (
    "--kafka.session_timeout_ms=2000",  # the mock holds every rebalance for a second less than this
    "--kafka.max_poll_interval_ms=20000",
    "--kafka.heartbeat_interval_ms=200",
)


def make_catalog(items: NDArray[np.int64]) -> Catalog:
    random = np.random.default_rng(5)
    sids = np.stack([random.integers(0, size, len(items)) for size in MODEL.sizes], axis=1).astype(np.int32)
    return build_catalog(version="v", model=MODEL.name, sizes=MODEL.sizes, ids=items, sids=sids)


def recalled_directly(model: Path, count: int) -> list[list[int]]:
    """What the engine gives for the requests of ``ask``."""
    engine = RecallEngine(EngineSettings(model=model, context_pages=64, threads=1, device="cpu"))
    engine.catalogs.stage(make_catalog(ITEMS))
    engine.catalogs.activate("v")
    requests = [RecallRequest(BeamPolicy((8, 8, 8)), 5, history=np.array([100 + n])) for n in range(count)]
    answers = [engine.recall([request])[0] for request in requests]
    return [np.asarray(answer.items).tolist() for answer in answers if isinstance(answer, RecallResult)]


def publish(settings: CatalogSettings, items: NDArray[np.int64], namespace: str) -> str:
    catalog = make_catalog(items)
    data = blob.encode(catalog)
    manifest = Manifest.of(dataclasses.replace(catalog, version=blob.version_of(data)), data)
    Publisher(connect(settings), namespace).publish(manifest, data)
    return manifest.version


class Service:
    """A ``recallstream serve`` of the test's own."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        self.http = httpx.Client(base_url=eventually(self._address, START_S), timeout=5)

    def reasons(self) -> list[str]:
        reasons: list[str] = self.http.get("/readyz").json()["reasons"]
        return reasons

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.http.get("/status").json()
        return status

    def _address(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"status page at (http://\S+)", self.log.read_text())
        return found[1] if found else None


@contextmanager
def service(tmp_path: Path, *flags: str, module: str = "consumer.cli.main") -> Iterator[Service]:
    """``module``: the command line, or what stands for it."""
    log = tmp_path / "serve.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", "--http.port=0", "--engine.threads=1", *flags],
            stderr=sink,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        running = Service(process, log)
        try:
            yield running
        finally:
            running.http.close()
            process.kill()
            process.wait()


def flags(model: Path, kafka: KafkaSettings, redis: CatalogSettings, namespace: str) -> list[str]:
    return [
        f"--engine.model={model}",
        "--engine.context_pages=64",
        "--recall.width=8",
        "--recall.top_k=5",
        f"--kafka.bootstrap_servers={kafka.bootstrap_servers}",
        f"--kafka.group_protocol={kafka.group_protocol}",
        f"--catalog.url={redis.url.get_secret_value()}",
        f"--catalog.namespace={namespace}",
    ]


def send_same(kafka: KafkaSettings) -> None:
    """The same request under the same correlation id, as of a client that sends it again."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    value = encode_request("same", {"history": [100], "deadline_ms": 2**52})
    producer.produce(kafka.request_topic, value, key=b"u", partition=0, headers=[("correlation-id", b"same")])
    assert producer.flush(10) == 0


def ask(kafka: KafkaSettings, count: int) -> list[RecallReply]:
    async def all_of_them() -> list[RecallReply]:
        async with RecallClient(kafka) as client:
            return await asyncio.gather(
                *(client.recall(user_id=f"u{n}", history=[100 + n], timeout=20) for n in range(count))
            )

    return asyncio.run(all_of_them())
