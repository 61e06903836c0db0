"""What a group pins is what its instances serve and keep."""

from collections.abc import Iterator
from typing import Any

import pytest

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.layout import PinnedVersion
from catalog_sync.pins import Pins, read_pin
from engine.errors import CatalogError, RequestError
from tests.catalog_sync.redis_support import Fleet, ack_of, version_with
from tests.consumer.waiting import eventually

GROUP = "recall-eu"


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server, group=GROUP)
    yield running
    running.close()


@pytest.fixture
def pins(fleet: Fleet) -> Pins:
    return Pins(fleet.redis, fleet.keys)


def test_a_group_serves_its_pin_whatever_becomes_current_until_it_is_unpinned(fleet: Fleet, pins: Pins) -> None:
    first, second = fleet.publish(range(5)), fleet.publish(range(6))
    with fleet.watcher() as watcher:
        eventually(lambda: fleet.store.active == second.version)
        pin = pins.serve(GROUP, first.version)
        eventually(lambda: fleet.store.active == first.version)
        polls = watcher.snapshot().polls
        third = fleet.publish(range(7))
        eventually(lambda: watcher.snapshot().polls > polls)
        snapshot = watcher.snapshot()
        assert (snapshot.active, snapshot.pinned, snapshot.generation) == (first.version, True, pin.generation)
        assert (snapshot.state, ack_of(fleet).pinned, ack_of(fleet).group) == ("current", True, GROUP)
        assert pins.remove(GROUP) is None
        eventually(lambda: fleet.store.active == third.version)
        assert not watcher.snapshot().pinned


def test_a_pin_is_loaded_at_the_start_also_without_a_pointer(fleet: Fleet, pins: Pins) -> None:
    manifest, data = version_with(range(5))
    fleet.publisher.upload(manifest, data)
    pins.serve(GROUP, manifest.version)
    with fleet.watcher():
        eventually(lambda: fleet.store.active == manifest.version)


def test_another_group_follows_the_pointer(fleet: Fleet, pins: Pins) -> None:
    first, second = fleet.publish(range(5)), fleet.publish(range(6))
    pins.serve("recall-us", first.version)
    with fleet.watcher() as watcher:
        eventually(lambda: fleet.store.active == second.version)
        assert not watcher.snapshot().pinned


def test_kept_versions_stay_resident_for_requests_that_name_them(fleet: Fleet, pins: Pins) -> None:
    versions = [fleet.publish(range(n)).version for n in (3, 4, 5, 6)]
    for version in versions[:2]:
        pins.keep(GROUP, version)
    with fleet.watcher() as watcher:
        eventually(lambda: set(fleet.store.resident()) == {versions[3], versions[0], versions[1]})
        assert fleet.store.active == versions[3]
        for version in versions[:2]:
            with fleet.store.pin(version) as resident:
                assert resident.version == version
        eventually(lambda: ack_of(fleet).kept == dict.fromkeys(sorted(versions[:2]), "resident"))
        fleet.publish(range(7))
        fleet.publish(range(8))
        eventually(lambda: watcher.snapshot().generation and len(fleet.store.resident()) == 4)
        assert set(versions[:2]) < set(fleet.store.resident())
        pins.remove(GROUP, versions[0])
        eventually(lambda: versions[0] not in fleet.store.resident())
        with pytest.raises(RequestError), fleet.store.pin(versions[0]):
            pass
        assert versions[1] in fleet.store.resident()


def test_what_memory_does_not_allow_is_a_typed_refusal_and_the_rest_serves(fleet: Fleet, pins: Pins) -> None:
    old, current = fleet.publish(range(5)), fleet.publish(range(6))
    with fleet.watcher() as watcher:
        eventually(lambda: fleet.store.active == current.version)
        fleet.free_memory = 0
        pins.keep(GROUP, old.version)
        refusal = eventually(lambda: watcher.snapshot().kept.get(old.version))
        assert refusal.startswith("memory: ")
        assert (fleet.store.active, watcher.snapshot().state) == (current.version, "current")
        fleet.free_memory = 1 << 40
        fleet.redis.publish(fleet.keys.notify, 1)
        eventually(lambda: watcher.snapshot().kept.get(old.version) == "resident")


def test_a_kept_version_that_is_damaged_is_fetched_once_while_the_pin_stands(fleet: Fleet, pins: Pins) -> None:
    old, current = fleet.publish(range(200)), fleet.publish(range(6))
    fleet.redis.set(fleet.keys.chunk(old.version, 0), b"x")
    pins.keep(GROUP, old.version)
    with fleet.watcher() as watcher:
        eventually(lambda: watcher.snapshot().kept.get(old.version, "").startswith("checksum"))
        polls = watcher.snapshot().polls
        fleet.redis.set(fleet.keys.chunk(old.version, 0), bytes(version_with(range(200))[1][:1024]))
        fleet.redis.publish(fleet.keys.notify, 1)
        eventually(lambda: watcher.snapshot().polls > polls)
        assert watcher.snapshot().kept[old.version].startswith("checksum")
        assert fleet.store.active == current.version


def test_pinning_wants_a_version_that_is_there_and_sound(fleet: Fleet, pins: Pins) -> None:
    with pytest.raises(CatalogError) as caught:
        pins.serve(GROUP, "0123456789abcdef")
    assert caught.value.reason == "unknown_version"
    bad = fleet.publish(range(5))
    fleet.publish(range(6))
    FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher).condemn(bad.version, "operator", "x", "me")
    with pytest.raises(CatalogError) as caught:
        pins.keep(GROUP, bad.version)
    assert caught.value.reason == "quarantined"
    with pytest.raises(CatalogError) as caught:
        pins.remove(GROUP, bad.version)
    assert caught.value.reason == "not_pinned"


def test_pins_add_up_and_each_has_a_larger_generation(fleet: Fleet, pins: Pins) -> None:
    a, b = (fleet.publish(range(n)).version for n in (5, 6))
    generations = [pins.keep(GROUP, a).generation, pins.serve(GROUP, b).generation, pins.keep(GROUP, b).generation]
    assert generations == sorted(set(generations))
    pin = read_pin(fleet.redis, fleet.keys, GROUP)
    assert pin is not None
    assert (pin.serve and pin.serve.version, [each.version for each in pin.keep]) == (b, [a, b])
    assert isinstance(pin.serve, PinnedVersion)
    left = pins.remove(GROUP, b)
    assert left is not None
    assert left.versions == (a,)


def test_a_pin_that_makes_no_sense_is_reported_and_the_resident_version_serves(fleet: Fleet) -> None:
    current = fleet.publish(range(5))
    with fleet.watcher() as watcher:
        eventually(lambda: fleet.store.active == current.version)
        fleet.redis.set(fleet.keys.pin(GROUP), b"no pin")
        fleet.redis.publish(fleet.keys.notify, 1)
        eventually(lambda: watcher.snapshot().reason == "pin")
        assert fleet.store.active == current.version


def test_a_version_deleted_while_it_is_pinned_is_not_pinned(
    fleet: Fleet, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = fleet.publish(range(5)).version
    set_ = fleet.redis.set

    def prune_first(key: str, *args: Any) -> object:
        fleet.redis.delete(fleet.keys.manifest(version))
        return set_(key, *args)

    monkeypatch.setattr(fleet.redis, "set", prune_first)
    with pytest.raises(CatalogError) as caught:
        pins.serve(GROUP, version)
    assert caught.value.reason == "unknown_version"
    assert fleet.redis.get(fleet.keys.pin(GROUP)) is None
