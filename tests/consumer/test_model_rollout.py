"""From an old model to a new one: docs/operations.md, walked with two processes of one consumer group."""

import dataclasses
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.layout import Canary, Manifest
from catalog_sync.prune import Pruner, retire
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from consumer.stream.mock_cluster import MockCluster
from consumer.stream.settings import KafkaSettings
from engine.catalog.build import build_catalog
from engine.errors import CatalogError
from tests.consumer.serve_harness import QUICK_GROUP, START_S, ask, flags, service
from tests.consumer.waiting import eventually
from tests.engine.tiny_models import TinyModel, write_model

OLD, NEW = TinyModel(sizes=(6, 5, 4)), TinyModel(sizes=(8, 8), seed=3)
ITEMS = np.arange(100, 160)
NAMESPACE = "rollout"


@pytest.fixture
def kafka() -> Iterator[KafkaSettings]:
    with MockCluster({"recall.requests": 2, "recall.replies": 1, "recall.dead-letters": 1}) as cluster:
        yield KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, group_protocol="classic")


@pytest.fixture
def redis() -> Iterator[CatalogSettings]:
    with EmbeddedRedis() as server:
        yield CatalogSettings.model_validate({"url": server.url, "namespace": NAMESPACE})


@pytest.fixture
def publisher(redis: CatalogSettings) -> Iterator[Publisher]:
    with connect(redis) as client:
        yield Publisher(client, NAMESPACE)


def publish(publisher: Publisher, model: TinyModel, items: NDArray[np.int64], *canaries: Canary) -> str:
    """The items of one moment in a model's SIDs."""
    random = np.random.default_rng(5)
    sids = np.stack([random.integers(0, size, len(items)) for size in model.sizes], axis=1).astype(np.int32)
    catalog = build_catalog(version="", model=model.name, sizes=model.sizes, ids=items, sids=sids)
    data = blob.encode(catalog)
    manifest = Manifest.of(dataclasses.replace(catalog, version=blob.version_of(data)), data)
    return publisher.publish(msgspec.structs.replace(manifest, canaries=canaries), data).version


def answered_by(kafka: KafkaSettings) -> Counter[tuple[str | None, str | None]]:
    replies = ask(kafka, 24)
    assert {reply.status for reply in replies} == {"ok"}
    return Counter((reply.model, reply.catalog) for reply in replies)


def test_two_models_serve_side_by_side_and_the_old_one_leaves(
    kafka: KafkaSettings, redis: CatalogSettings, publisher: Publisher, tmp_path: Path
) -> None:
    canary = Canary({"history": [100, 101], "beam": {"width": 8}, "top_k": 5}, at_least=5)
    paths = {model.name: write_model(model, tmp_path / model.name) for model in (OLD, NEW)}
    logs = [tmp_path / "1", tmp_path / "2"]
    for log in logs:
        log.mkdir()
    old_version = publish(publisher, OLD, ITEMS, canary)
    with service(logs[0], *flags(paths[OLD.name], kafka, redis, NAMESPACE), *QUICK_GROUP) as old:
        eventually(lambda: old.reasons() == [], START_S)  # its canary was answered before anything was read
        assert answered_by(kafka) == {(OLD.name, old_version): 24}

        new_version = publish(publisher, NEW, ITEMS, canary)  # a pointer of its own
        assert answered_by(kafka) == {(OLD.name, old_version): 24}
        with service(logs[1], *flags(paths[NEW.name], kafka, redis, NAMESPACE), *QUICK_GROUP) as new:
            eventually(lambda: new.reasons() == [], START_S)
            both = {(OLD.name, old_version), (NEW.name, new_version)}
            eventually(lambda: len(new.status()["stream"]["partitions"]) == 1, START_S)
            eventually(lambda: set(answered_by(kafka)) == both, START_S)

            bad = Canary(canary.request, at_least=5, must_contain=(999,), name="of yesterday")
            refused = publish(publisher, NEW, ITEMS[:50], bad)  # the new one refuses, the old one does not even look
            eventually(lambda: refused in new.status()["catalog"]["condemned"])
            assert "of yesterday" in new.status()["catalog"]["condemned"][refused]
            assert set(answered_by(kafka)) == both
            assert old.status()["catalog"]["condemned"] == {}
            assert FleetQuarantine(publisher.client, publisher.keys, publisher).condemn(refused, "canary", "x", "me")

            changed = {model.name: publish(publisher, model, ITEMS[:40]) for model in (OLD, NEW)}
            eventually(lambda: old.status()["catalog"]["active"] == changed[OLD.name])
            eventually(lambda: new.status()["catalog"]["active"] == changed[NEW.name])
            assert set(answered_by(kafka)) == set(changed.items())

            with pytest.raises(CatalogError, match="stop them"):
                retire(publisher, OLD.name)
            old.process.send_signal(signal.SIGTERM)
            assert old.process.wait(20) == 0
            eventually(lambda: set(answered_by(kafka)) == {(NEW.name, changed[NEW.name])}, START_S)
            publisher.client.delete(publisher.keys.ack(old_instance(publisher)))  # it would expire within a minute
            retire(publisher, OLD.name)
            pruned = Pruner(publisher.client, publisher.keys, publisher).prune(0)
            assert {old_version, changed[OLD.name]} <= pruned.versions.keys()
            assert answered_by(kafka) == {(NEW.name, changed[NEW.name]): 24}


def old_instance(publisher: Publisher) -> str:
    [name] = [ack.instance for ack in publisher.status().acks if ack.model == OLD.name]
    return name
