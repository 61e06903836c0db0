"""``recallstream serve --gpus 2`` on the CPU: shared partitions, failures of a process, drain, no orphan."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.settings import CatalogSettings
from consumer.client import RecallClient, RecallReply
from consumer.stream.mock_cluster import CLIENT_SETTINGS, MockCluster
from consumer.stream.settings import KafkaSettings
from tests.consumer.faulty_serve import DEVICE_LOST, FATAL_TOP_K
from tests.consumer.serve_harness import ITEMS, MODEL, START_S, Service, ask, flags, publish, recalled_directly, service
from tests.consumer.waiting import eventually
from tests.engine.tiny_models import write_model

PARTITIONS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(MODEL, tmp_path_factory.mktemp("model"))


@pytest.fixture
def kafka() -> Iterator[KafkaSettings]:
    with MockCluster({"recall.requests": PARTITIONS, "recall.replies": 1, "recall.dead-letters": 1}) as cluster:
        yield KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, group_protocol="classic")


@pytest.fixture(scope="module")
def redis() -> Iterator[CatalogSettings]:
    with EmbeddedRedis() as server:
        settings = CatalogSettings.model_validate({"url": server.url})
        publish(settings, ITEMS, "fleet")
        yield settings


def fleet_flags(model: Path, kafka: KafkaSettings, redis: CatalogSettings, device: str = "cpu") -> list[str]:
    return [
        *flags(model, kafka, redis, "fleet"),
        "--gpus=2",
        f"--engine.device={device}",
        "--kafka.session_timeout_ms=2000",  # the mock holds every rebalance for a second less than this
        "--kafka.heartbeat_interval_ms=200",
        f"--kafka.consumer_options={json.dumps(CLIENT_SETTINGS)}",
    ]


def gpus(running: Service) -> list[dict[str, Any]]:
    members: list[dict[str, Any]] = running.status()["gpus"]
    return members


def partitions(member: dict[str, Any]) -> set[int]:
    return {p["partition"] for p in member["status"]["stream"]["partitions"]} if member["status"] else set()


def share_all_partitions(running: Service) -> bool:
    owned = [partitions(member) for member in gpus(running)]
    return all(owned) and sum(map(len, owned)) == PARTITIONS and set.union(*owned) == set(range(PARTITIONS))


def is_gone(pid: int) -> bool:
    """Also true for one that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def ask_for_the_fatal_number(kafka: KafkaSettings) -> RecallReply:
    async def one() -> RecallReply:
        async with RecallClient(kafka) as client:
            return await client.recall(user_id="u", history=[100], top_k=FATAL_TOP_K, timeout=40)

    return asyncio.run(one())


def test_two_processes_share_the_topic_outlive_a_lost_device_and_drain(
    model: Path, kafka: KafkaSettings, redis: CatalogSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICE_LOST, str(tmp_path / "device-lost"))
    with service(tmp_path, *fleet_flags(model, kafka, redis), module="tests.consumer.faulty_serve") as running:
        eventually(lambda: running.reasons() == [], START_S)
        eventually(lambda: share_all_partitions(running))
        first = gpus(running)
        instances = {member["status"]["service"]["instance"] for member in first}
        assert {name.rpartition("-")[2] for name in instances} == {"gpu0", "gpu1"}

        replies = ask(kafka, 24)
        assert [np.asarray(reply.items).tolist() for reply in replies] == recalled_directly(model, 24)
        answered = [member["status"]["replies"]["ok"] for member in gpus(running)]
        assert all(answered)
        assert sum(answered) == 24

        families = {f.name: f for f in text_string_to_metric_families(running.http.get("/metrics").text)}
        ok = {s.labels["gpu"]: s.value for s in families["recallstream_replies"].samples if s.labels["status"] == "ok"}
        assert ok == {"0": answered[0], "1": answered[1]}
        assert [s.value for s in families["recallstream_ready"].samples] == [1, 1]
        alone = running.http.get("/gpus/1/status").json()
        assert alone["replies"]["ok"] == answered[1]

        with ThreadPoolExecutor(1) as client:
            fatal = client.submit(ask_for_the_fatal_number, kafka)
            eventually(lambda: "ended with exit code 1" in " ".join(running.reasons()))
            (lost,) = [member for member in gpus(running) if member["restarts"]]
            assert lost["last_exit"] == 1
            assert running.http.get("/healthz").status_code == 200
            assert f'recallstream_ready{{gpu="{lost["gpu"]}"}} 0.0' in running.http.get("/metrics").text
            assert fatal.result().status == "ok", "its offset was not committed: another process answers it"
        eventually(lambda: running.reasons() == [], START_S)
        (again,) = [member for member in gpus(running) if member["restarts"]]
        assert again["pid"] != lost["pid"]
        eventually(lambda: share_all_partitions(running))

        before = time.monotonic()
        for pid in (running.process.pid, *(member["pid"] for member in gpus(running))):  # all of them, as systemd does
            os.kill(pid, signal.SIGTERM)
        assert running.process.wait(20) == 0
        assert time.monotonic() - before < 10
        assert all(is_gone(member["pid"]) for member in (*first, again))
    assert "fell off the bus" in running.log.read_text()


def test_no_process_outlives_a_killed_parent(
    model: Path, kafka: KafkaSettings, redis: CatalogSettings, tmp_path: Path
) -> None:
    with service(tmp_path, *fleet_flags(model, kafka, redis)) as running:
        eventually(lambda: running.reasons() == [], START_S)
        children = [member["pid"] for member in gpus(running)]
        assert not any(is_gone(pid) for pid in children)
        os.kill(running.process.pid, signal.SIGKILL)
        eventually(lambda: all(is_gone(pid) for pid in children))
    assert "the parent process has gone" in running.log.read_text()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_share_the_topic_and_answer_as_the_cpu_does(
    kafka: KafkaSettings, redis: CatalogSettings, tmp_path: Path
) -> None:
    model = write_model(replace(MODEL, head_dim=16), tmp_path / "model")  # as small as the kernels take
    few = ["--batch.max_requests=2", "--engine.max_batch=2", "--engine.max_batch_rows=128", "--engine.max_width=64"]
    small = ["--engine.precision=fp32", "--engine.graph_prefill_tokens=128", *few]
    with service(tmp_path, *fleet_flags(model, kafka, redis, "cuda"), *small) as running:
        eventually(lambda: running.reasons() == [], 2 * START_S)
        eventually(lambda: share_all_partitions(running))
        replies = ask(kafka, 24)
        assert [np.asarray(reply.items).tolist() for reply in replies] == recalled_directly(model, 24)
        members = gpus(running)
        assert all(member["status"]["replies"]["ok"] for member in members)
        assert {member["gpu"] for member in members} == {"0", "1"}
        os.kill(running.process.pid, signal.SIGTERM)
        assert running.process.wait(20) == 0
