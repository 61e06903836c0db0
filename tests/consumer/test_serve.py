"""``recallstream serve`` as a process: start, readiness, answers, catalogs, drain, exit codes."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.settings import CatalogSettings
from consumer.stream.mock_cluster import MockCluster
from consumer.stream.settings import KafkaSettings
from tests.consumer.serve_harness import (
    ITEMS,
    MODEL,
    START_S,
    Service,
    ask,
    flags,
    publish,
    recalled_directly,
    send_same,
    service,
)
from tests.consumer.waiting import eventually
from tests.engine.tiny_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(MODEL, tmp_path_factory.mktemp("model"))


@pytest.fixture
def kafka() -> Iterator[KafkaSettings]:
    with MockCluster({"recall.requests": 2, "recall.replies": 1, "recall.dead-letters": 1}) as cluster:
        yield KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, group_protocol="classic")


@pytest.fixture(scope="module")
def redis() -> Iterator[CatalogSettings]:
    with EmbeddedRedis() as server:
        yield CatalogSettings.model_validate({"url": server.url})


def send_same_and_count(running: Service, kafka: KafkaSettings) -> int:
    """Send the same request again; how many repeats the process has counted once its reply is confirmed."""
    confirmed = figure(running, 'recallstream_request_seconds_count{phase="confirmed"}')
    send_same(kafka)
    eventually(lambda: figure(running, 'recallstream_request_seconds_count{phase="confirmed"}') == confirmed + 1)
    return figure(running, "recallstream_repeats_total")


def figure(running: Service, series: str) -> int:
    found = re.search(rf"^{re.escape(series)} (\d+)", running.http.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_from_start_to_drain(model: Path, kafka: KafkaSettings, redis: CatalogSettings, tmp_path: Path) -> None:
    with service(tmp_path, *flags(model, kafka, redis, "whole")) as running:
        eventually(lambda: "no catalog is active: the model has no pointer in Redis" in running.reasons(), START_S)
        assert running.http.get("/healthz").status_code == 200
        assert "waiting for the first catalog: the model has no pointer in Redis" in running.log.read_text()
        first = publish(redis, ITEMS, "whole")
        eventually(lambda: running.reasons() == [], START_S)

        replies = ask(kafka, 12)
        assert {reply.status for reply in replies} == {"ok"}
        assert {reply.catalog for reply in replies} == {first}
        assert [np.asarray(reply.items).tolist() for reply in replies] == recalled_directly(model, 12)

        second = publish(redis, ITEMS[:40], "whole")
        eventually(lambda: running.status()["catalog"]["active"] == second)
        assert running.status()["catalog"]["previous"] == first

        status = eventually(lambda: (s := running.status())["stream"]["in_flight"] == 0 and s)
        assert status["replies"]["ok"] == 12
        assert status["latency_ms"]["p50"] > 0
        assert 0 < status["batch"]["fill"] <= 1
        assert status["service"]["model"] == MODEL.name
        assert {p["partition"] for p in status["stream"]["partitions"]} == {0, 1}
        metrics = running.http.get("/metrics").text
        assert 'recallstream_replies_total{status="ok"} 12.0' in metrics
        assert f'recallstream_catalog_info{{role="active",version="{second}"}} 1.0' in metrics
        assert "recallstream_ready 1.0" in metrics

        before = len(metrics.splitlines())
        ask(kafka, 3)
        assert len(running.http.get("/metrics").text.splitlines()) == before

        eventually(lambda: running.status()["stream"]["in_flight"] == 0)
        for repeats in (0, 1):
            assert send_same_and_count(running, kafka) == repeats
        third = publish(redis, ITEMS[:50], "whole")
        eventually(lambda: running.status()["catalog"]["active"] == third)
        for repeats in (1, 2):
            assert send_same_and_count(running, kafka) == repeats, "the first after a swap is for the engine"

        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
        assert "Traceback" not in running.log.read_text()


def test_the_endpoints_answer_and_sigterm_works_while_the_model_loads(
    model: Path, kafka: KafkaSettings, redis: CatalogSettings, tmp_path: Path
) -> None:
    with service(tmp_path, *flags(model, kafka, redis, "empty")) as running:
        assert running.reasons()[0] in ("the model is loading", "waiting for the first catalog")
        assert running.status()["service"]["ready"] is False
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
        assert "Traceback" not in running.log.read_text()
