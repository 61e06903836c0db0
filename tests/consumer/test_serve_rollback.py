"""``recallstream serve`` meets a catalog that answers nothing, and Redis is away: it goes back by itself."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Manifest
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from consumer.stream.mock_cluster import MockCluster
from consumer.stream.settings import KafkaSettings
from tests.consumer.serve_harness import ITEMS, MODEL, QUICK_GROUP, START_S, ask, flags, make_catalog, publish, service
from tests.consumer.waiting import eventually
from tests.engine.tiny_models import write_model

N = 12


@pytest.fixture
def kafka() -> Iterator[KafkaSettings]:
    with MockCluster({"recall.requests": 2, "recall.replies": 1, "recall.dead-letters": 1}) as cluster:
        yield KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, group_protocol="classic")


def publish_empty(settings: CatalogSettings, namespace: str) -> str:
    """The same items, none of which may be recalled."""
    catalog = dataclasses.replace(make_catalog(ITEMS), recallable=np.zeros(len(ITEMS), dtype=np.bool_))
    data = blob.encode(catalog)
    manifest = Manifest.of(dataclasses.replace(catalog, version=blob.version_of(data)), data)
    with connect(settings) as client:
        Publisher(client, namespace).publish(manifest, data)
    return manifest.version


def test_it_goes_back_and_answers_on_and_a_restart_remembers(kafka: KafkaSettings, tmp_path: Path) -> None:
    model = write_model(MODEL, tmp_path / "model")
    with EmbeddedRedis() as own:
        redis = CatalogSettings.model_validate({"url": own.url})
        good = publish(redis, ITEMS, "back")
        own_flags = [
            *flags(model, kafka, redis, "back"),
            *QUICK_GROUP,
            f"--catalog.guard_requests={N}",
            f"--catalog.disk={tmp_path / 'disk'}",
            "--catalog.instance=i1",
        ]
        with service(tmp_path, *own_flags) as running:
            eventually(lambda: running.reasons() == [], START_S)
            assert {(reply.catalog, len(reply.items)) for reply in ask(kafka, N)} == {(good, 5)}
            bad = publish_empty(redis, "back")
            eventually(lambda: running.status()["catalog"]["active"] == bad)
            own.kill()

            def went_back() -> bool:
                for reply in ask(kafka, N):
                    assert (reply.status, reply.catalog) in (("ok", good), ("ok", bad))
                return bool(running.status()["catalog"]["active"] == good)

            eventually(went_back, 60.0)
            assert {(reply.catalog, len(reply.items)) for reply in ask(kafka, N)} == {(good, 5)}
            status = running.status()["catalog"]
            assert status["condemned"][bad].startswith("empty_rate: ")
            assert status["rolled_back"] == 1
            assert "recallstream_catalog_rollbacks_total 1.0" in running.http.get("/metrics").text
            page = running.http.get("/catalog").text
            assert bad in page
            assert "had no items" in page
            eventually(lambda: list((tmp_path / "disk").glob("*.quarantined")))
        with service(tmp_path, *own_flags) as again:
            eventually(lambda: again.reasons() == [], START_S)  # without Redis, from the disk
            assert again.status()["catalog"]["active"] == good
            assert bad in again.status()["catalog"]["condemned"]
