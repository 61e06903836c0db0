import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from catalog_sync.change_feed import ChangeFeed, FeedResult
from catalog_sync.connection import connect
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Manifest
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog import follow
from consumer.cli.main import main
from consumer.stream.mock_cluster import MockCluster
from engine.errors import CatalogError
from tests.consumer.waiting import eventually

Say = pytest.CaptureFixture[str]
TOPIC, GROUP = "recall.items", "recallstream-items"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        yield running


@pytest.fixture
def publisher(server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Publisher]:
    """A namespace of its own, which the environment names, with items 1 and 2 current."""
    monkeypatch.setenv("RECALLSTREAM_CATALOG__URL", server.url)
    monkeypatch.setenv("RECALLSTREAM_CATALOG__NAMESPACE", namespace := tmp_path.name.replace("[", "-").replace("]", ""))
    monkeypatch.chdir(tmp_path)
    settings = CatalogSettings.model_validate({"url": server.url, "namespace": namespace})
    table = rows(tmp_path / "base.jsonl", [1, 2])
    assert main(["catalog", "build", str(table), "--model", "m", "--levels", "4,4", "--output", "base.rsc"]) == 0
    assert main(["catalog", "publish", "base.rsc"]) == 0
    with connect(settings) as client:
        yield Publisher(client, settings.namespace)


def rows(path: Path, ids: list[int]) -> Path:
    path.write_text("".join(json.dumps({"item_id": i, "sid": [i % 4, 0], "title": f"T{i}"}) + "\n" for i in ids))
    return path


def current(publisher: Publisher) -> Manifest:
    pointer = publisher.pointer("m")
    assert pointer is not None
    return publisher.manifest(pointer.version)


def test_items_are_added_and_withdrawn_by_files_and_by_ids(publisher: Publisher, tmp_path: Path, capsys: Say) -> None:
    base = current(publisher)
    gone = tmp_path / "gone.jsonl"
    gone.write_text('{"item_id": 1}\n')
    add = str(rows(tmp_path / "add.jsonl", [3, 4]))
    capsys.readouterr()
    assert main(["catalog", "delta", "--add", add, "--withdraw", "gone.jsonl", "--withdraw", "2,77"]) == 0
    changed = current(publisher)
    assert (changed.parent, changed.items, changed.withdrawn) == (base.version, 2, 3)
    said = capsys.readouterr().out
    assert "2 items added or replaced, 3 withdrawn" in said
    assert f"version {changed.version} is current for model m" in said


def test_a_chain_that_has_grown_is_written_out_in_full_by_another_process(publisher: Publisher, capsys: Say) -> None:
    assert main(["catalog", "delta", "--withdraw", "1", "--rebase-after", "2"]) == 0
    capsys.readouterr()
    assert main(["catalog", "delta", "--withdraw", "2", "--rebase-after", "2"]) == 0
    last = current(publisher)
    assert f"version {last.version} is there in full: 2 items" in capsys.readouterr().out
    assert publisher.client.exists(publisher.keys.full(last.version))
    assert main(["catalog", "delta", "--withdraw", "1"]) == 0
    assert main(["catalog", "rebase"]) == 0
    assert f"version {current(publisher).version} is there in full" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["delta"], 1, "--add or --withdraw"),
        (["delta", "--withdraw", "x"], 1, "int64"),
        (["delta", "--withdraw", "1", "--model", "n"], 1, "'n' has no current version"),
        (["delta", "--withdraw", "1,1"], 1, "item id 1"),
        (["delta", "--withdraw", "x" * 300], 1, "is no int64"),
        (["delta", "--add", "absent.jsonl"], 1, "absent.jsonl"),
        (["delta", "--add", "bad.jsonl"], 1, "bad.jsonl: line 2: sid has 1 codes"),
        (["delta", "--add", "field.jsonl"], 1, "no field 'color'"),
        (["rebase", "0123"], 1, "version 0123 is not in Redis"),
        (["follow", "--bootstrap", "", "--seconds", "1"], 2, "bootstrap"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_published(
    publisher: Publisher, tmp_path: Path, capsys: Say, arguments: list[str], code: int, says: str
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"item_id": 5, "sid": [1, 1]}\n{"item_id": 6, "sid": [1]}\n')
    (tmp_path / "field.jsonl").write_text('{"item_id": 5, "sid": [1, 1], "color": "red"}\n')
    before = current(publisher)
    capsys.readouterr()
    assert main(["catalog", *arguments]) == code
    captured = capsys.readouterr()
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1
    assert current(publisher) == before


@contextmanager
def following(cluster: MockCluster, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "consumer.cli.main", "catalog", "follow", "--seconds", "0.1"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "--bootstrap", cluster.bootstrap_servers], stdout=output, stderr=output,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def committed(cluster: MockCluster) -> int:
    options = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP}
    consumer = Consumer(options)
    try:
        offsets = consumer.committed([TopicPartition(TOPIC, 0)], timeout=5)
        return offsets[0].offset
    finally:
        consumer.close()


def test_changes_of_a_topic_become_versions_and_their_offsets_are_committed_after(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALLSTREAM_KAFKA__SESSION_TIMEOUT_MS", "1000")  # the mock does not see members leave
    monkeypatch.setenv("RECALLSTREAM_KAFKA__HEARTBEAT_INTERVAL_MS", "100")
    log = tmp_path / "follow.log"
    with MockCluster({TOPIC: 1}) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})

        def say(key: str, value: object) -> None:
            producer.produce(TOPIC, key=key, value=None if value is None else json.dumps(value))
            assert producer.flush(10) == 0

        say("3", {"item_id": 3, "sid": [3, 3], "title": "new"})
        say("4", {"item_id": 4, "sid": [9, 9]})
        say("1", None)
        with following(cluster, log) as process:
            eventually(lambda: current(publisher).withdrawn == 1, timeout=40)
            eventually(lambda: committed(cluster) == 3, timeout=20)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert "refused: recall.items 0 @ 1: line 1: code 9" in log.read_text()
        before = current(publisher)
        assert (before.items, before.withdrawn) == (1, 1)
        say("2", {"item_id": 2, "withdrawn": True})
        with following(cluster, log) as process:
            eventually(lambda: current(publisher).parent == before.version, timeout=40)
            eventually(lambda: committed(cluster) == 4, timeout=20)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert (current(publisher).items, current(publisher).withdrawn) == (0, 1)


def test_a_publish_that_others_were_faster_than_is_tried_again_and_a_fault_that_stays_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Say
) -> None:
    monkeypatch.setattr(follow, "_FIRST_PAUSE_S", 0.001)
    faults = [CatalogError("conflict", "moved meanwhile"), CatalogError("verify", "missing")]

    class Feed:
        def publish(self, _: object) -> FeedResult:
            if faults:
                raise faults.pop(0)
            return FeedResult("v")

    result = follow.published(cast(ChangeFeed, Feed()), [], Event())
    assert result is not None
    assert result.version == "v"
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["moved meanwhile", "missing"]

    class Stuck:
        def publish(self, _: object) -> FeedResult:
            raise CatalogError("chain", "256 deltas")

    with pytest.raises(CatalogError, match="256 deltas"):
        follow.published(cast(ChangeFeed, Stuck()), [], Event())
