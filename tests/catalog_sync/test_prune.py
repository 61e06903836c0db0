from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from catalog_sync.connection import get_bytes
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Ack, Condemnation, Manifest, Pin, PinnedVersion, Pointer, chunks_of
from catalog_sync.pins import Pins
from catalog_sync.prune import Pruner, reasons_to_keep, retire
from catalog_sync.publisher import FleetStatus
from engine.errors import CatalogError
from tests.catalog_sync.redis_support import MODEL, Fleet, version_with
from tests.consumer.waiting import eventually


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server)
    yield running
    running.close()


@pytest.fixture
def pruner(fleet: Fleet) -> Pruner:
    return Pruner(fleet.redis, fleet.keys, fleet.publisher)


def manifest(version: str, parent: str | None = None, full_of: str | None = None) -> Manifest:
    known = version_with([1])[0]
    return msgspec.structs.replace(known, version=version, parent=parent, full_of=full_of)


def test_each_reason_to_keep_a_version_holds_by_itself() -> None:
    status = FleetStatus(
        pointers={MODEL: Pointer("current", 5, "h", ("bad", "back", "older", "oldest"))},
        manifests=(
            manifest("current", parent="base"),
            manifest("base", parent="base-of-that"),
            manifest("base-of-that"),
            manifest("back"),
            manifest("full", full_of="current"),
            manifest("equal"),
            manifest("pinned", parent="pinned-base"),
            manifest("pinned-base", parent="pinned-base-of-that"),
            manifest("pinned-base-of-that"),
            manifest("unused", parent="unused-base"),
        ),
        acks=(
            Ack("i1", MODEL, "served", 1, "current", None, 1, target="wanted", resident=("served", "resident")),
            Ack("i2", MODEL, None, 1, "starting", None, 1, kept={"kept": "memory: x"}),
        ),
        unreadable=(),
        pins={"g": Pin(1, PinnedVersion("pinned", "h"), (PinnedVersion("pin-kept", "h"),))},
        quarantine={"bad": Condemnation("bad", "empty_rate", "", 1, 1)},
        full_forms={"pinned": "equal", "unused": "unused-full"},
    )
    kept = reasons_to_keep(status, history=0)
    assert set(kept) == {
        *("current", "base", "base-of-that", "back", "full", "pinned", "pin-kept", "equal"),
        *("served", "wanted", "resident", "kept"),
    }
    assert kept["base"] == "version current is a change of it"
    assert set(reasons_to_keep(status, history=3)) - set(kept) == {"bad", "older"}


def test_what_nobody_needs_goes_with_all_its_chunks_and_the_rest_stays_whole(fleet: Fleet, pruner: Pruner) -> None:
    versions = [fleet.publish(range(100 * n)).version for n in range(1, 6)]
    Pins(fleet.redis, fleet.keys).serve("g", versions[0])
    dry = pruner.prune(0, dry_run=True)
    assert set(dry.versions) == {versions[1], versions[2]}
    assert len(fleet.publisher.status().manifests) == 5
    pruned = pruner.prune(0)
    assert pruned.versions == dry.versions
    left = {key.decode().split(":")[2] for key in fleet.redis.scan_iter(fleet.keys.chunk("*", 0)[:-1] + "*")}
    assert left == {versions[0], versions[3], versions[4]}
    for each in fleet.publisher.status().manifests:
        assert all(fleet.redis.exists(fleet.keys.chunk(each.version, n)) for n in range(len(each.chunks)))
    with pytest.raises(CatalogError) as caught:
        fleet.publisher.activate(versions[1])
    assert caught.value.reason == "unknown_version"
    again = fleet.publish(range(200))
    assert again.version == versions[1]


def test_what_an_instance_serves_or_keeps_stays(fleet: Fleet, pruner: Pruner) -> None:
    first, second = fleet.publish(range(5)), fleet.publish(range(6))
    with fleet.watcher():
        eventually(lambda: fleet.store.active == second.version)
        third = fleet.publish(range(7))
        eventually(lambda: fleet.store.active == third.version)
        fourth = fleet.publish(range(8))
        eventually(lambda: fleet.store.active == fourth.version)
        eventually(lambda: fleet.publisher.status().acks[0].version == fourth.version)
        assert set(pruner.prune(0).versions) == {first.version, second.version}


def while_pruning(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]) -> str:
    """An old version, to which ``act`` happens right after the pruner has looked at the fleet."""
    wanted = fleet.publish(range(5)).version
    for n in (6, 7, 8):
        fleet.publish(range(n))
    look = fleet.publisher.status

    def then_act() -> FleetStatus:
        status = look()
        act(wanted)
        return status

    monkeypatch.setattr(fleet.publisher, "status", then_act)
    return wanted


def test_a_version_that_becomes_current_while_pruning_stays(
    fleet: Fleet, pruner: Pruner, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = while_pruning(fleet, monkeypatch, fleet.publisher.activate)
    assert wanted not in pruner.prune(0).versions
    assert get_bytes(fleet.redis, fleet.keys.chunk(wanted, 0)) is not None
    assert fleet.publisher.manifest(wanted)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("changed", [True, False], ids=["and is changed", ""])
def test_what_makes_a_version_that_becomes_current_while_pruning_stays(
    fleet: Fleet, pruner: Pruner, monkeypatch: pytest.MonkeyPatch, full: bool, changed: bool
) -> None:
    fleet.publish(range(5))
    deltas = DeltaPublisher(fleet.publisher)
    wanted = [deltas.publish(deltas.head(MODEL), None, [np.array([n])])[0].version for n in range(3)][-1]
    if full:
        deltas.rebase(wanted)
    for n in (6, 7, 8):
        fleet.publish(range(n))
    look = fleet.publisher.status

    def then_activate() -> FleetStatus:
        status = look()
        fleet.publisher.activate(wanted)
        if changed:
            deltas.publish(deltas.head(MODEL), None, [np.array([4])])
        return status

    monkeypatch.setattr(fleet.publisher, "status", then_activate)
    pruner.prune(0)
    current = deltas.head(MODEL).pointer.version
    assert (current == wanted) is not changed
    with fleet.watcher():
        eventually(lambda: fleet.store.active == current)


def test_a_version_pinned_while_pruning_is_put_back(
    fleet: Fleet, pruner: Pruner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = Pins(fleet.redis, fleet.keys)
    wanted = while_pruning(fleet, monkeypatch, lambda version: pins.serve("g", version))
    pruned = pruner.prune(0)
    assert wanted not in pruned.versions
    assert pruned.kept[wanted] == "pinned by group g meanwhile"
    assert fleet.publisher.manifest(wanted)


def test_a_publisher_that_uploads_the_pruned_version_again_is_never_left_with_half_of_it(
    fleet: Fleet, pruner: Pruner, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, data = version_with(range(500))
    old = fleet.publisher.publish(manifest, data).version
    lengths = {fleet.keys.chunk(old, n): len(chunk) for n, chunk in enumerate(chunks_of(data, manifest.chunk_bytes))}
    for n in (6, 7, 8):
        fleet.publish(range(n))
    sweep, swept = pruner.sweep, list[bool]()

    def upload_in_between(version: str, chunk: str) -> bool:
        gone = sweep(version, chunk)
        if version == old:
            swept.append(gone)
            if len(swept) == 2:
                fleet.redis.set(fleet.keys.manifest(old), msgspec.json.encode(manifest), nx=True)
        return gone

    monkeypatch.setattr(pruner, "sweep", upload_in_between)
    pruner.prune(0)
    assert swept == [True, True] + [False] * (len(lengths) - 2)
    monkeypatch.setattr(fleet.redis, "strlen", lengths.__getitem__)  # it looked before the chunks went
    with pytest.raises(CatalogError) as caught:
        fleet.publisher.upload(manifest, data)
    assert caught.value.reason == "verify"
    monkeypatch.undo()
    assert fleet.publish(range(500)).version == old  # another try writes what is missing


def test_chunks_that_a_killed_publisher_left_go_once_they_are_old(
    fleet: Fleet, pruner: Pruner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.publish(range(5))
    fleet.redis.set(fleet.keys.chunk("0123456789abcdef", 0), b"left")
    assert pruner.prune(0).orphans == 0  # it may be an upload under way
    monkeypatch.setattr("catalog_sync.prune.ORPHAN_IDLE_SECONDS", 0)
    assert pruner.prune(0, dry_run=True).orphans == 1
    assert pruner.prune(0).orphans == 1
    assert not fleet.redis.exists(fleet.keys.chunk("0123456789abcdef", 0))


def test_a_model_is_retired_only_when_no_instance_has_it(fleet: Fleet, pruner: Pruner) -> None:
    version = fleet.publish(range(5)).version
    fleet.redis.set(fleet.keys.ack("i1"), msgspec.json.encode(Ack("i1", MODEL, version, 1, "current", None, 1)), px=300)
    with pytest.raises(CatalogError) as caught:
        retire(fleet.publisher, MODEL)
    assert caught.value.reason == "in_use"
    eventually(lambda: not fleet.publisher.status().acks)
    retire(fleet.publisher, MODEL)
    with pytest.raises(CatalogError) as caught:
        retire(fleet.publisher, MODEL)
    assert caught.value.reason == "unknown_model"
    assert set(pruner.prune(2).versions) == {version}
