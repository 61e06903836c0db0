import re
import threading
from collections.abc import Iterator

import msgspec
import pytest

from catalog_sync.connection import get_bytes, subscribe
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import CHUNK_BYTES, Ack, Manifest, Pointer, chunks_of, sha256
from engine.errors import CatalogError
from tests.catalog_sync.redis_support import MODEL, Fleet, version_with


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server)
    yield running
    running.close()


def reason_of(error: pytest.ExceptionInfo[CatalogError]) -> str:
    return error.value.reason


def test_a_published_version_is_announced_with_its_generation(fleet: Fleet) -> None:
    with subscribe(fleet.redis, fleet.keys.notify) as subscription:
        assert subscription.get_message(timeout=2.0)["type"] == "subscribe"
        pointer = fleet.publish([1, 2, 3])
        assert subscription.get_message(timeout=2.0)["data"] == str(pointer.generation).encode()
    assert fleet.publisher.pointer(MODEL) == pointer
    seconds, microseconds = fleet.redis.time()
    assert 0 <= seconds * 1000 + microseconds // 1000 - pointer.generation < 60_000


def test_chunks_are_immutable_and_a_broken_upload_goes_on(fleet: Fleet) -> None:
    manifest, data = version_with(range(500))
    assert len(manifest.chunks) > 4
    fleet.redis.set(fleet.keys.chunk(manifest.version, 0), bytes(data[:1024]))
    done: list[int] = []
    fleet.publisher.upload(manifest, data, done.append)
    assert sum(done) == 2 * len(data)
    stored = [get_bytes(fleet.redis, fleet.keys.chunk(manifest.version, i)) for i in range(len(manifest.chunks))]
    assert b"".join(chunk or b"" for chunk in stored) == data
    assert fleet.publisher.upload(msgspec.structs.replace(manifest, label="again"), data).label is None


def test_what_cannot_be_read_back_is_an_error_and_stays_inactive(fleet: Fleet) -> None:
    manifest, data = version_with(range(500))
    fleet.redis.set(fleet.keys.chunk(manifest.version, 1), b"\0" * 1024)
    with pytest.raises(CatalogError, match="chunk 1") as caught:
        fleet.publisher.publish(manifest, data)
    assert reason_of(caught) == "verify"
    assert fleet.publisher.pointer(MODEL) is None


def test_another_manifest_under_the_same_version_is_an_error(fleet: Fleet) -> None:
    manifest, data = version_with([1, 2])
    other = msgspec.structs.replace(manifest, items=3)
    fleet.redis.set(fleet.keys.manifest(manifest.version), msgspec.json.encode(other))
    with pytest.raises(CatalogError) as caught:
        fleet.publisher.upload(manifest, data)
    assert reason_of(caught) == "verify"


def test_rollback_goes_back_step_by_step_under_new_generations(fleet: Fleet) -> None:
    pointers = [fleet.publish(range(n + 1)) for n in range(3)]
    back = fleet.publisher.rollback(MODEL)
    assert (back.version, back.history) == (pointers[1].version, (pointers[0].version,))
    again = fleet.publisher.rollback(MODEL)
    assert again.version == pointers[0].version
    generations = [p.generation for p in (*pointers, back, again)]
    assert generations == sorted(set(generations))
    with pytest.raises(CatalogError) as caught:
        fleet.publisher.rollback(MODEL)
    assert reason_of(caught) == "no_previous"


def test_activation_needs_the_manifest_and_the_right_model(fleet: Fleet) -> None:
    with pytest.raises(CatalogError) as caught:
        fleet.publisher.activate("0123456789abcdef")
    assert reason_of(caught) == "unknown_version"
    manifest, data = version_with([1], model="other")
    fleet.publisher.upload(manifest, data)
    with pytest.raises(CatalogError) as caught:
        fleet.publisher.activate(manifest.version, model=MODEL)
    assert reason_of(caught) == "incompatible"
    assert fleet.publisher.activate(manifest.version, model="other").version == manifest.version


def test_a_publisher_that_was_overtaken_moves_nothing(fleet: Fleet) -> None:
    manifest, data = version_with([1, 2])
    winner: list[Pointer] = []

    def overtake(_: int) -> None:
        if not winner:
            winner.append(fleet.publish([7, 8, 9]))

    with pytest.raises(CatalogError) as caught:
        fleet.publisher.publish(manifest, data, overtake)
    assert reason_of(caught) == "conflict"
    assert fleet.publisher.pointer(MODEL) == winner[0]
    assert fleet.publisher.activate(manifest.version).history == (winner[0].version,)


def test_of_racing_activations_each_generation_has_one_winner(fleet: Fleet) -> None:
    versions = [version_with([n]) for n in range(4)]
    for manifest, data in versions:
        fleet.publisher.upload(manifest, data)
    won: list[int] = []

    def race(version: str) -> None:
        for _ in range(25):
            try:
                won.append(fleet.publisher.activate(version).generation)
            except CatalogError as error:
                if error.reason != "conflict":
                    won.append(-1)

    threads = [threading.Thread(target=race, args=(manifest.version,)) for manifest, _ in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert -1 not in won
    assert len(set(won)) == len(won) > 0
    pointer = fleet.publisher.pointer(MODEL)
    assert pointer is not None
    assert pointer.generation == max(won)


def test_generations_grow_although_the_clock_stands_behind(fleet: Fleet) -> None:
    first = fleet.publish([1])
    future = first.generation + 10**9
    fleet.redis.hset(fleet.keys.current(MODEL), "generation", future)
    assert fleet.publish([2]).generation == future + 1


def test_status_shows_what_is_there_and_survives_nonsense(fleet: Fleet) -> None:
    old, new = fleet.publish([1], label="monday"), fleet.publish([2])
    ack = Ack("i1", MODEL, new.version, new.generation, "current", None, 1)
    fleet.redis.set(fleet.keys.ack("i1"), msgspec.json.encode(ack))
    fleet.redis.set(fleet.keys.ack("i2"), b"\xff nonsense")
    fleet.redis.set(fleet.keys.manifest("future"), b'{"format": 9}')
    fleet.redis.set(fleet.keys.manifest("?").encode().replace(b"?", b"\xff"), b"{}")
    fleet.redis.hset(fleet.keys.manifest("hash"), "a", "b")
    fleet.redis.lpush(fleet.keys.ack("list"), "a")
    other = fleet.publisher.upload(*version_with([3], model="other"))
    fleet.redis.set(fleet.keys.current("other"), "no hash")
    status = fleet.publisher.status()
    assert status.pointers == {MODEL: new}
    assert {(m.version, m.label) for m in status.manifests} == {
        (old.version, "monday"),
        (new.version, None),
        (other.version, None),
    }
    assert status.acks == (ack,)
    keys = fleet.keys
    unreadable = {
        keys.manifest("\\xff"),
        keys.ack("i2"),
        keys.ack("list"),
        keys.manifest("future"),
        keys.manifest("hash"),
        keys.current("other"),
    }
    assert set(status.unreadable) == unreadable


@pytest.mark.parametrize("kind", ["text", "hash"])
def test_a_pointer_that_stands_in_the_way_is_named(fleet: Fleet, kind: str) -> None:
    key = fleet.keys.current(MODEL)
    if kind == "text":
        fleet.redis.set(key, "no hash")
    else:
        fleet.redis.hset(key, "version", "v")
    with pytest.raises(CatalogError, match=re.escape(key)):
        fleet.publish([1])
    with pytest.raises(CatalogError, match=re.escape(key)):
        fleet.publisher.rollback(MODEL)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 99}, "format"),
        ({"size": 0}, "manifest"),
        ({"size": 2**62}, "manifest"),
        ({"chunk_bytes": 0}, "manifest"),
        ({"chunk_bytes": CHUNK_BYTES + 1}, "manifest"),
        ({"chunks": ()}, "manifest"),
        ({"sizes": (0,)}, "structure"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(change: dict[str, object], reason: str) -> None:
    manifest, _ = version_with([1])
    raw = msgspec.json.encode(msgspec.structs.replace(manifest, **change))
    with pytest.raises(CatalogError) as caught:
        Manifest.read(raw)
    assert reason_of(caught) == reason


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_a_truncated_manifest_is_refused(cut: int) -> None:
    raw = msgspec.json.encode(version_with([1])[0])
    with pytest.raises(CatalogError) as caught:
        Manifest.read(raw[:cut])
    assert reason_of(caught) == "manifest"


@pytest.mark.parametrize(
    "raw",
    [
        {b"version": b"v"},
        {b"version": b"v", b"generation": b"x", b"manifest": b"h"},
        {b"version": b"", b"generation": b"1", b"manifest": b"h"},
        {b"version": b"v\nERROR a line of its own", b"generation": b"1", b"manifest": b"h"},
        {b"version": b"v" * 129, b"generation": b"1", b"manifest": b"h"},
        {b"version": b"v", b"generation": b"0", b"manifest": b"h"},
        {b"version": b"v", b"generation": b"9" * 400, b"manifest": b"h"},
        {b"version": b"\xff", b"generation": b"1", b"manifest": b"h"},
        {b"version": b"v", b"generation": b"1", b"manifest": b"h", b"history": b"[1]"},
    ],
)
def test_a_pointer_that_makes_no_sense_is_refused(raw: dict[bytes, bytes]) -> None:
    assert Pointer.read({}) is None
    with pytest.raises(CatalogError) as caught:
        Pointer.read(raw)
    assert reason_of(caught) == "pointer"


def test_chunks_cover_a_blob_without_copying() -> None:
    data = bytes(range(256)) * 4
    parts = chunks_of(data, 300)
    assert [len(part) for part in parts] == [300, 300, 300, 124]
    assert b"".join(parts) == data
    assert sha256(b"".join(parts)) == sha256(data)
