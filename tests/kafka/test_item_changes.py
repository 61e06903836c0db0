"""``catalog follow`` on a real broker: what the catalog holds follows the topic, whatever becomes of versions."""

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from confluent_kafka import Producer

from catalog_sync import blob
from catalog_sync.connection import connect
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fetch import fetch_blob
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from consumer.cli.main import main
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.waiting import eventually

pytestmark = pytest.mark.kafka
WAIT_S = 60


class Following:
    """A topic of two partitions, the catalog that follows it, the processes that make it follow."""

    def __init__(self, cluster: KafkaCluster, publisher: Publisher, log: Path) -> None:
        self.publisher, self._cluster, self._log = publisher, cluster, log
        self._name = f"items-{uuid.uuid4().hex[:8]}"
        cluster.create_topics({self._name: 2})
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})

    def say(self, item: int, code: int, partition: int) -> None:
        value = json.dumps({"item_id": item, "sid": [code, 0]})
        self._producer.produce(self._name, key=str(item), value=value, partition=partition)
        assert self._producer.flush(10) == 0

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            sys.executable, "-m", "consumer.cli.main", "catalog", "follow", "--seconds", "0.1", "--topic", self._name,
            "--group-id", self._name, "--bootstrap", self._cluster.bootstrap_servers,
        ]  # fmt: skip
        with self._log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=Path(__file__).parents[2])
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()

    @property
    def version(self) -> str:
        pointer = self.publisher.pointer("m")
        assert pointer is not None
        return pointer.version

    def positions(self) -> dict[int, int]:
        return self.publisher.manifest(self.version).positions.get(self._name, {})

    def items(self) -> dict[int, int]:
        """The first code of every item, in the version written out in full."""
        full = DeltaPublisher(self.publisher).rebase(self.version)
        catalog = blob.decode(fetch_blob(self.publisher.client, self.publisher.keys, full, Event()))
        assert isinstance(catalog.ids, np.ndarray)
        return dict(zip(catalog.ids.tolist(), catalog.sids[:, 0].tolist(), strict=True))


@pytest.fixture
def following(broker: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    with EmbeddedRedis() as server:
        monkeypatch.setenv("RECALLSTREAM_CATALOG__URL", server.url)
        monkeypatch.setenv("RECALLSTREAM_KAFKA__SESSION_TIMEOUT_MS", "6000")
        monkeypatch.chdir(tmp_path)
        Path("base.jsonl").write_text('{"item_id": 1, "sid": [1, 0]}\n')
        assert main(["catalog", "build", "base.jsonl", "--model", "m", "--levels", "64,4", "--output", "base.rsc"]) == 0
        assert main(["catalog", "publish", "base.rsc"]) == 0
        with connect(settings := CatalogSettings.model_validate({"url": server.url})) as client:
            yield Following(broker, Publisher(client, settings.namespace), tmp_path / "log")


def test_a_version_found_bad_takes_only_its_own_changes_with_it_also_over_kills(following: Following) -> None:
    with following.process() as first:
        following.say(2, 2, 0)
        eventually(lambda: following.positions() == {0: 1, 1: 0}, WAIT_S)
        following.say(3, 3, 1)
        eventually(lambda: following.positions() == {0: 1, 1: 1}, WAIT_S)
        bad = following.version
        following.say(4, 4, 0)
        eventually(lambda: following.positions() == {0: 2, 1: 1}, WAIT_S)
        following.say(5, 5, 1)
        eventually(lambda: following.positions() == {0: 2, 1: 2}, WAIT_S)
        FleetQuarantine(following.publisher.client, following.publisher.keys, following.publisher).condemn(
            bad, "empty", "it is bad", "test"
        )
        eventually(lambda: following.positions() == {0: 2, 1: 2}, WAIT_S)
        assert following.items() == {1: 1, 2: 2, 4: 4, 5: 5}
        first.kill()
    following.publisher.rollback("m")  # while nobody follows, so that the offsets of the group are further on
    before = following.positions()
    assert before != {0: 2, 1: 2}
    with following.process() as second:
        eventually(lambda: following.positions() == {0: 2, 1: 2}, WAIT_S)
        assert following.items() == {1: 1, 2: 2, 4: 4, 5: 5}
        following.say(3, 6, 1)  # mended
        eventually(lambda: following.positions() == {0: 2, 1: 3}, WAIT_S)
        assert following.items() == {1: 1, 2: 2, 3: 6, 4: 4, 5: 5}
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0
