import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import msgspec
import numpy as np
import pytest
from pydantic import SecretStr

from catalog_sync import blob
from catalog_sync.connection import get_bytes
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fetch import fetch_blob
from catalog_sync.last_good import STALE_S
from catalog_sync.layout import Ack, Pointer, chunks_of, read_record, sha256
from catalog_sync.state import WatcherSnapshot
from catalog_sync.watcher import Watcher
from engine.errors import CatalogError
from tests.black_hole import BlackHole
from tests.catalog_sync.redis_support import MODEL, SIZES, Fleet, version_with
from tests.consumer.waiting import eventually


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server)
    yield running
    running.close()


def until_active(fleet: Fleet, pointer: Pointer, within: float = 5.0) -> None:
    eventually(lambda: fleet.store.active == pointer.version, timeout=within)


def until_state(watcher: Watcher, state: str, reason: str | None, within: float = 5.0) -> WatcherSnapshot:
    def reached() -> WatcherSnapshot | None:
        snapshot = watcher.snapshot()
        return snapshot if (snapshot.state, snapshot.reason) == (state, reason) else None

    return eventually(reached, timeout=within)


def check_serves(fleet: Fleet, items: int) -> None:
    with fleet.store.pin() as resident:
        assert resident.live_total() == items


def test_the_pointer_of_the_start_and_every_publish_become_active_and_are_acknowledged(fleet: Fleet) -> None:
    first = fleet.publish(range(10))
    with fleet.watcher() as watcher:
        until_active(fleet, first)
        second = fleet.publish(range(20))
        until_active(fleet, second)
        check_serves(fleet, 20)
        snapshot = until_state(watcher, "current", None)
        assert (snapshot.active, snapshot.previous) == (second.version, first.version)
        assert (snapshot.generation, snapshot.activated) == (second.generation, 2)
        assert snapshot.notices >= 1
        assert snapshot.resident_bytes > 0
        assert fleet.store.resident() == (second.version, first.version)

        def acknowledged() -> bool:
            ack = read_record(get_bytes(fleet.redis, fleet.keys.ack(fleet.settings.instance)) or b"{}", Ack, "ack")
            return (ack.version, ack.generation, ack.state, ack.error) == (
                second.version,
                second.generation,
                "current",
                None,
            )

        eventually(acknowledged, timeout=2.0)
        assert fleet.redis.ttl(fleet.keys.ack(fleet.settings.instance)) > 0


def test_a_rollback_activates_the_resident_previous_version_without_a_fetch(fleet: Fleet) -> None:
    first, second = fleet.publish(range(10)), fleet.publish(range(20))
    fleet.publisher.rollback(MODEL)
    with fleet.watcher() as watcher:
        until_active(fleet, first)
        fleet.publisher.activate(second.version)
        until_active(fleet, second)
        for key in fleet.redis.scan_iter(fleet.keys.chunk(first.version, 0)[:-1] + "*"):
            fleet.redis.delete(key)
        back = fleet.publisher.rollback(MODEL)
        until_active(fleet, first)
        assert until_state(watcher, "current", None).generation == back.generation


def test_a_burst_of_publishes_ends_at_the_newest(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        pointers = [fleet.publish(range(n)) for n in range(1, 15)]
        until_active(fleet, pointers[-1])
        assert watcher.snapshot().activated <= len(pointers)


def damage(fleet: Fleet, kind: str, manifest_key: str, chunk_key: str, other_chunk_key: str) -> None:
    redis = fleet.redis
    chunk = get_bytes(redis, chunk_key)
    other = get_bytes(redis, other_chunk_key)
    manifest = get_bytes(redis, manifest_key)
    assert chunk
    assert other
    assert manifest
    match kind:
        case "flip a byte":
            redis.set(chunk_key, bytes([chunk[0] ^ 1]) + chunk[1:])
        case "cut a chunk":
            redis.set(chunk_key, chunk[:-1])
        case "swap two chunks":
            redis.set(chunk_key, other)
            redis.set(other_chunk_key, chunk)
        case "change the manifest" | "truncate the manifest":
            redis.set(manifest_key, manifest.replace(b"leaves", b"Leaves") if "change" in kind else manifest[:-5])
        case "drop a chunk":
            redis.delete(chunk_key)
        case "drop the manifest":
            redis.delete(manifest_key)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("flip a byte", "checksum"),
        ("cut a chunk", "checksum"),
        ("swap two chunks", "checksum"),
        ("change the manifest", "checksum"),
        ("truncate the manifest", "checksum"),
        ("drop a chunk", "missing"),
        ("drop the manifest", "missing"),
    ],
)
def test_a_damaged_version_is_refused_and_the_active_one_serves_on(fleet: Fleet, kind: str, reason: str) -> None:
    good = fleet.publish(range(10))
    manifest, data = version_with(range(200))
    fleet.publisher.upload(manifest, data)
    version = manifest.version
    with fleet.watcher() as watcher:
        until_active(fleet, good)
        keys = (fleet.keys.manifest(version), fleet.keys.chunk(version, 1), fleet.keys.chunk(version, 2))
        damage(fleet, kind, *keys)
        if "manifest" not in kind:
            fleet.publisher.activate(version)
        else:  # the publisher would notice
            digest = sha256(msgspec.json.encode(manifest))
            fleet.redis.hset(
                fleet.keys.current(MODEL), mapping={"version": version, "generation": 1, "manifest": digest}
            )
            fleet.redis.publish(fleet.keys.notify, 1)
        snapshot = until_state(watcher, "refused", reason)
        assert (snapshot.active, snapshot.target, snapshot.refused[reason] >= 1) == (good.version, version, True)
        assert snapshot.error is not None
        assert ("manifest" if "manifest" in kind else "chunk 1") in snapshot.error
        assert fleet.store.resident() == (good.version,)
        check_serves(fleet, 10)
        again = fleet.publish(range(30))
        until_active(fleet, again)


def test_a_missing_chunk_that_comes_back_is_fetched_without_a_new_pointer(fleet: Fleet) -> None:
    manifest, data = version_with(range(200))
    fleet.publisher.upload(manifest, data)
    key = fleet.keys.chunk(manifest.version, 1)
    chunk = get_bytes(fleet.redis, key)
    assert chunk
    fleet.redis.delete(key)
    pointer = fleet.publisher.activate(manifest.version)
    with fleet.watcher() as watcher:
        until_state(watcher, "refused", "missing")
        fleet.redis.set(key, chunk)
        until_active(fleet, pointer)


def test_a_version_refused_for_good_is_not_fetched_again(fleet: Fleet) -> None:
    manifest, data = version_with(range(200))
    fleet.publisher.upload(manifest, data)
    fleet.redis.set(fleet.keys.chunk(manifest.version, 0), b"x")
    fleet.publisher.activate(manifest.version)
    with fleet.watcher() as watcher:
        polls = until_state(watcher, "refused", "checksum").polls
        for _ in range(5):
            fleet.redis.publish(fleet.keys.notify, 1)
        eventually(lambda: watcher.snapshot().polls > polls + 1)
        assert watcher.snapshot().refused == {"checksum": 1}


@pytest.mark.parametrize(("model", "sizes"), [("other", SIZES), (MODEL, (64, 65)), (MODEL, (64, 64, 64))])
def test_a_version_for_another_model_is_refused(fleet: Fleet, model: str, sizes: tuple[int, ...]) -> None:
    manifest, data = version_with(range(9), model=model, sizes=sizes)
    fleet.publisher.upload(manifest, data)
    digest = sha256(msgspec.json.encode(manifest))
    fleet.redis.hset(
        fleet.keys.current(MODEL), mapping={"version": manifest.version, "generation": 1, "manifest": digest}
    )
    with fleet.watcher() as watcher:
        assert until_state(watcher, "refused", "incompatible").active is None


def test_bytes_that_hash_right_but_are_no_sound_catalog_are_refused(fleet: Fleet) -> None:
    manifest, data = version_with(range(9))
    fleet.publisher.upload(manifest, data)
    ids = np.arange(9).astype("<i8").tobytes()
    assert ids in data
    data = data.replace(ids, np.zeros(9, "<i8").tobytes())
    broken = msgspec.structs.replace(
        manifest,
        version=blob.version_of(data),
        sha256=sha256(data),
        chunks=tuple(sha256(chunk) for chunk in chunks_of(data, manifest.chunk_bytes)),
    )
    fleet.publisher.upload(broken, data)
    fleet.publisher.activate(broken.version)
    with fleet.watcher() as watcher:
        until_state(watcher, "refused", "structure")


def test_no_memory_is_a_refusal_that_is_retried(fleet: Fleet) -> None:
    fleet.free_memory = 0
    pointer = fleet.publish(range(9))
    with fleet.watcher() as watcher:
        until_state(watcher, "refused", "memory")
        fleet.free_memory = 1 << 40
        until_active(fleet, pointer)


def test_an_unexpected_fault_is_a_refusal_too(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    good = fleet.publish(range(9))
    with fleet.watcher() as watcher:
        until_active(fleet, good)
        monkeypatch.setattr(fleet.store, "place", lambda _: 1 // 0)
        fleet.publish(range(10))
        assert until_state(watcher, "refused", "internal").active == good.version
        monkeypatch.undo()
        until_active(fleet, fleet.publish(range(11)))


def test_a_killed_subscription_misses_no_publish(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        until_active(fleet, fleet.publish(range(5)))
        for n in range(6, 9):
            fleet.redis.client_kill_filter(_type="pubsub")
            until_active(fleet, fleet.publish(range(n)), within=1.0)
        assert watcher.snapshot().reconnects >= 1


def test_flushall_keeps_the_resident_version_and_a_republish_is_seen(fleet: Fleet) -> None:
    fleet.poll_seconds = 0.05
    fleet.__post_init__()
    pointer = fleet.publish(range(5))
    with fleet.watcher() as watcher:
        until_active(fleet, pointer)
        fleet.redis.flushall()
        until_state(watcher, "no_pointer", "no_pointer")
        stale = watcher.snapshot().staleness_seconds
        eventually(lambda: watcher.snapshot().staleness_seconds > stale)
        check_serves(fleet, 5)
        again = fleet.publish(range(5))
        assert again.generation > pointer.generation
        eventually(lambda: watcher.snapshot().generation == again.generation, timeout=2.0)
        assert until_state(watcher, "current", None).staleness_seconds < 1.0


def test_a_redis_restart_is_survived_with_and_without_its_data() -> None:
    with EmbeddedRedis() as own:
        fleet = Fleet(own, poll_seconds=0.2)
        pointer = fleet.publish(range(5))
        with fleet.watcher() as watcher:
            until_active(fleet, pointer)
            fleet.redis.save()
            own.kill()
            until_state(watcher, "unreachable", "unreachable")
            check_serves(fleet, 5)
            own.start()
            until_state(watcher, "current", None)
            until_active(fleet, fleet.publish(range(6)))
        fleet.close()


def test_a_half_open_subscription_is_rebuilt(fleet: Fleet, server: EmbeddedRedis) -> None:
    hole = BlackHole(server.port)
    fleet.settings = fleet.settings.model_copy(
        update={"url": SecretStr(f"redis://127.0.0.1:{hole.port}/0"), "socket_timeout": 0.5}
    )
    try:
        with fleet.watcher() as watcher:
            until_active(fleet, fleet.publish(range(5)))
            eventually(lambda: fleet.redis.pubsub_numsub(fleet.keys.notify)[0][1] == 1)
            hole.swallow()
            pointer = fleet.publish(range(6))
            until_active(fleet, pointer, within=8.0)  # the poll would take 30 s
            eventually(lambda: watcher.snapshot().reconnects >= 1, timeout=8.0)
            until_active(fleet, fleet.publish(range(7)))
    finally:
        hole.close()


def test_without_redis_the_start_takes_the_copy_that_served_last(tmp_path: Path) -> None:
    disk = tmp_path / "catalogs"
    with EmbeddedRedis() as own:
        fleet = Fleet(own, poll_seconds=0.2, disk=disk)
        with fleet.watcher() as watcher:
            pointers = []
            for n in (5, 6, 7):
                pointers.append(fleet.publish(range(n)))
                until_active(fleet, pointers[-1])
            back = fleet.publisher.rollback(MODEL)
            until_active(fleet, back)
            eventually(lambda: watcher.snapshot().generation == back.generation)
        assert {path.name for path in disk.iterdir()} == {f"m@{pointer.version}.rsc" for pointer in pointers[1:]}
        fleet.close()
        own.kill()
        offline = Fleet(own, poll_seconds=0.2, disk=disk)
        with offline.watcher() as watcher:
            until_active(offline, back)
            assert until_state(watcher, "unreachable", "unreachable").generation == 0
        offline.close()


def test_a_damaged_copy_on_disk_is_passed_over_and_redis_heals_the_start(tmp_path: Path) -> None:
    disk = tmp_path / "catalogs"
    with EmbeddedRedis() as own:
        fleet = Fleet(own, poll_seconds=0.2, disk=disk)
        pointer = fleet.publish(range(5))
        with fleet.watcher():
            until_active(fleet, pointer)
            eventually(lambda: list(disk.glob("m@*.rsc")))
        fleet.close()
        own.kill()
        [copy] = disk.iterdir()
        data = bytearray(copy.read_bytes())
        data[-1] ^= 1
        copy.write_bytes(data)
        damaged = Fleet(own, poll_seconds=0.2, disk=disk)
        with damaged.watcher() as watcher:
            until_state(watcher, "unreachable", "unreachable")
            eventually(lambda: watcher.snapshot().staleness_seconds > 0.5)
            assert damaged.store.active is None
            own.start()
            until_active(damaged, damaged.publish(range(7)))
        damaged.close()


def test_what_a_killed_process_left_half_written_is_removed_at_the_start(fleet: Fleet, tmp_path: Path) -> None:
    name = f".{MODEL}@0123456789abcdef.rsc"
    left, being_written = tmp_path / f"{name}.1.partial", tmp_path / f"{name}.2.partial"
    others = [tmp_path / ".other@0123456789abcdef.rsc.1.partial", tmp_path / "notes.partial"]
    for path in (left, being_written, *others):
        path.write_bytes(b"half")
    for path in (left, *others):
        os.utime(path, (time.time() - STALE_S - 60,) * 2)
    fleet.settings = fleet.settings.model_copy(update={"disk": tmp_path})
    with fleet.watcher():
        until_active(fleet, fleet.publish(range(5)))
    assert not left.exists()
    assert being_written.exists()
    assert all(path.exists() for path in others)


def test_a_copy_that_cannot_be_looked_at_is_passed_over(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / f"{MODEL}@0123456789abcdef.rsc").symlink_to(tmp_path / "gone")
    fleet.settings = fleet.settings.model_copy(update={"disk": tmp_path})
    with fleet.watcher():
        until_active(fleet, fleet.publish(range(5)))


def test_no_fault_of_a_message_or_of_the_disk_ends_the_thread(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    fleet.settings = fleet.settings.model_copy(update={"disk": tmp_path})
    monkeypatch.setattr("catalog_sync.last_good.LastGood.load", fault)
    monkeypatch.setattr("redis.client.PubSub.get_message", fault)
    with fleet.watcher() as watcher:
        eventually(lambda: watcher.snapshot().reconnects > 1)
        monkeypatch.undo()
        until_active(fleet, fleet.publish(range(5)))


def test_a_full_disk_does_not_undo_an_activation(fleet: Fleet, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("a file where the directory should be")
    fleet.settings = fleet.settings.model_copy(update={"disk": blocker})
    pointer = fleet.publish(range(5))
    with fleet.watcher() as watcher:
        until_active(fleet, pointer)
        until_state(watcher, "current", None)


def test_stop_is_prompt_whatever_redis_does(fleet: Fleet) -> None:
    watcher = fleet.watcher()
    watcher.stop()  # never started
    watcher = fleet.watcher()
    watcher.start()
    until_state(watcher, "no_pointer", "no_pointer")
    begin = time.monotonic()
    watcher.stop()
    assert time.monotonic() - begin < 1.0


def test_a_stop_breaks_off_a_fetch(fleet: Fleet) -> None:
    manifest, data = version_with(range(200))
    fleet.publisher.upload(manifest, data)
    stop = Event()
    assert fetch_blob(fleet.redis, fleet.keys, manifest, stop) == data
    stop.set()
    with pytest.raises(CatalogError) as caught:
        fetch_blob(fleet.redis, fleet.keys, manifest, stop)
    assert caught.value.reason == "stopped"


def test_the_documented_rights_are_enough(fleet: Fleet) -> None:
    instance = fleet.settings.instance
    keys = f"resetkeys resetchannels -@all %R~{{{fleet.namespace}}}:* %RW~{fleet.keys.ack(instance)}"
    commands = "+get +mget +getrange +strlen +exists +hget +hgetall +set +del +expire +pttl +subscribe +unsubscribe"
    rules = f"on >pass {keys} &{fleet.keys.notify} {commands} +ping +hello".split()
    fleet.connect_as("consumer", "pass", rules)
    with fleet.watcher() as watcher:
        until_active(fleet, fleet.publish(range(5)))
        until_active(fleet, fleet.publish(range(6)))
        eventually(lambda: fleet.redis.exists(fleet.keys.ack(instance)), timeout=2.0)
        assert watcher.snapshot().reconnects == 0


def test_without_the_right_to_subscribe_the_poll_still_follows(fleet: Fleet) -> None:
    fleet.poll_seconds = 0.1
    fleet.__post_init__()
    fleet.connect_as("deaf", "pass", ["on", ">pass", "~*", "resetchannels", "+@all"])
    with fleet.watcher() as watcher:
        for n in (5, 6):
            until_active(fleet, fleet.publish(range(n)))
        until_state(watcher, "current", None)


def test_a_wrong_password_is_reported_and_retried_calmly(fleet: Fleet) -> None:
    fleet.connect_as("someone", "wrong", ["on", ">right", "~*", "&*", "+@all"])
    with fleet.watcher() as watcher:
        error = until_state(watcher, "unreachable", "unreachable").error
        assert error is not None
        assert "wrong" not in error.replace("WRONGPASS", "")
