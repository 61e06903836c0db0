"""A version whose answers are bad is rolled back by the instance itself, with and without Redis."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_guard import FleetGuard, Quorum
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.layout import Pointer
from catalog_sync.pins import Pins
from catalog_sync.watcher import Watcher
from engine.catalog.resident import ResidentCatalog
from engine.errors import CatalogError, RequestError
from engine.request import BeamPolicy, RecallRequest, RecallResult
from tests.catalog_sync.redis_support import MODEL, Fleet, ack_of, version_with
from tests.consumer.waiting import eventually

N = 20
REQUEST = RecallRequest(BeamPolicy((1, 1)), 1, history=np.array([1]))


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server, guard_requests=N)
    yield running
    running.close()


def answer(watcher: Watcher, version: str | None, *, items: int = 1, count: int = N) -> None:
    """Answers of a version, as the device thread reports them."""
    good = RecallResult(np.arange(items), np.zeros(items, np.float32), MODEL, version or "", (1, 1), exhausted=False)
    watcher.observe([REQUEST] * count, [good] * count)


def two_versions(fleet: Fleet, watcher: Watcher) -> tuple[Pointer, Pointer]:
    """The second one active, the first one with enough answers to compare with."""
    first = fleet.publish(range(10))
    eventually(lambda: fleet.store.active == first.version)
    answer(watcher, first.version)
    second = fleet.publish(range(20))
    eventually(lambda: watcher.snapshot().state == "current" and fleet.store.active == second.version)
    return first, second


def test_empty_answers_of_a_new_version_bring_the_one_before_back(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        first, second = two_versions(fleet, watcher)
        answer(watcher, second.version, items=0)
        assert fleet.store.active == first.version  # already: the device thread did it
        assert fleet.store.resident() == (first.version,)
        snapshot = watcher.snapshot()
        assert (snapshot.state, snapshot.reason, snapshot.rolled_back) == ("rolled_back", "empty_rate", 1)
        eventually(lambda: ack_of(fleet).condemned)
        ack = ack_of(fleet)
        assert (ack.version, ack.target, ack.state) == (first.version, second.version, "rolled_back")
        assert ack.condemned[second.version].startswith("empty_rate: 100.0% of 20 answers had no items")
        assert watcher.snapshot().state == "rolled_back"  # and stays, though the pointer names the bad one


def test_it_needs_no_redis(fleet: Fleet) -> None:
    with EmbeddedRedis() as own:
        alone = Fleet(own, guard_requests=N, poll_seconds=0.2)
        with alone.watcher() as watcher:
            first, second = two_versions(alone, watcher)
            own.kill()
            answer(watcher, second.version, items=0)
            assert alone.store.active == first.version
            eventually(lambda: watcher.snapshot().state == "unreachable")
            assert second.version in watcher.snapshot().condemned
        alone.close()


def test_errors_that_the_catalog_can_cause_count_too(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        first, second = two_versions(fleet, watcher)
        watcher.observe([REQUEST] * N, [RequestError("bad_request", "the catalog has no field 'title'")] * N)
        assert (fleet.store.active, watcher.snapshot().reason) == (first.version, "error_rate")
        assert second.version in watcher.snapshot().condemned


def test_the_bad_version_is_not_taken_up_again_until_it_is_released(fleet: Fleet) -> None:
    quarantine = FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher)
    with fleet.watcher() as watcher:
        first, second = two_versions(fleet, watcher)
        answer(watcher, second.version, items=0)
        fleet.publisher.activate(second.version)  # a new generation of the same
        eventually(lambda: watcher.snapshot().state == "quarantined")
        assert fleet.store.active == first.version
        eventually(lambda: ack_of(fleet).state == "quarantined")
        quarantine.release(second.version)
        fleet.publisher.activate(second.version)
        eventually(lambda: fleet.store.active == second.version)
        assert watcher.snapshot().condemned == {}
        with pytest.raises(CatalogError) as caught:
            quarantine.release(second.version)
        assert caught.value.reason == "not_quarantined"


def test_a_release_counts_though_the_clock_of_redis_went_back(fleet: Fleet) -> None:
    quarantine = FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher)
    with fleet.watcher() as watcher:
        first, _ = two_versions(fleet, watcher)
        ahead = first.generation + 3_600_000
        fleet.redis.hset(fleet.keys.current(MODEL), "generation", ahead)
        bad = fleet.publish(range(30))
        assert bad.generation == ahead + 1
        eventually(lambda: fleet.store.active == bad.version and watcher.snapshot().state == "current")
        answer(watcher, bad.version, items=0)
        eventually(lambda: bad.version in ack_of(fleet).condemned)
        quarantine.release(bad.version)
        fleet.publisher.activate(bad.version)
        eventually(lambda: fleet.store.active == bad.version)


def test_the_next_good_version_is_served_as_ever(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        _, second = two_versions(fleet, watcher)
        answer(watcher, second.version, items=0)
        third = fleet.publish(range(30))
        eventually(lambda: fleet.store.active == third.version and watcher.snapshot().state == "current")
        answer(watcher, third.version)
        assert fleet.store.active == third.version
        assert second.version in watcher.snapshot().condemned


def test_a_version_that_served_before_and_a_first_one_are_not_judged(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        first, second = two_versions(fleet, watcher)
        answer(watcher, second.version)
        fleet.publisher.rollback(MODEL)
        eventually(lambda: fleet.store.active == first.version)
        answer(watcher, first.version, items=0)
        assert fleet.store.active == first.version
    alone = Fleet(fleet.server, guard_requests=N)
    with alone.watcher() as watcher:
        only = alone.publish(range(3))
        eventually(lambda: alone.store.active == only.version)
        answer(watcher, only.version)
        answer(watcher, only.version, items=0, count=10 * N)
        assert alone.store.active == only.version
    alone.close()


def test_pointing_to_the_same_version_again_does_not_end_its_watch(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        first, second = two_versions(fleet, watcher)
        again = fleet.publisher.activate(second.version)
        eventually(lambda: watcher.snapshot().generation == again.generation)
        answer(watcher, second.version, items=0)
        assert fleet.store.active == first.version


def test_a_version_that_was_kept_before_it_first_serves_is_watched(server: EmbeddedRedis) -> None:
    fleet = Fleet(server, guard_requests=N, group="g")
    with fleet.watcher() as watcher:
        first = fleet.publish(range(10))
        eventually(lambda: fleet.store.active == first.version)
        answer(watcher, first.version)
        manifest, data = version_with(range(20))
        fleet.publisher.upload(manifest, data)
        Pins(fleet.redis, fleet.keys).keep("g", manifest.version)
        eventually(lambda: watcher.snapshot().kept.get(manifest.version) == "resident")
        fleet.publisher.activate(manifest.version)
        eventually(lambda: fleet.store.active == manifest.version and watcher.snapshot().state == "current")
        answer(watcher, manifest.version, items=0)
        assert fleet.store.active == first.version
        eventually(lambda: watcher.snapshot().kept.get(manifest.version, "").startswith("quarantined"))
    fleet.close()


def test_the_guard_can_be_turned_off(server: EmbeddedRedis) -> None:
    fleet = Fleet(server, guard_requests=0)
    with fleet.watcher() as watcher:
        _, second = two_versions(fleet, watcher)
        answer(watcher, second.version, items=0, count=1000)
        assert fleet.store.active == second.version
    fleet.close()


def test_a_fault_of_the_judging_does_not_reach_the_device_thread(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet.watcher() as watcher:
        _, second = two_versions(fleet, watcher)
        monkeypatch.setattr(fleet.store, "rollback", lambda: 1 // 0)
        answer(watcher, second.version, items=0)
        assert fleet.store.active == second.version


def test_the_quarantine_and_the_bad_file_outlive_the_process(server: EmbeddedRedis, tmp_path: Path) -> None:
    fleet = Fleet(server, guard_requests=N, disk=tmp_path)
    with fleet.watcher() as watcher:
        first, second = two_versions(fleet, watcher)
        eventually((tmp_path / f"{MODEL}@{second.version}.rsc").exists)
        answer(watcher, second.version, items=0)
        eventually((tmp_path / f"{MODEL}@{second.version}.rsc.quarantined").exists)
        eventually(lambda: ack_of(fleet).condemned)
    names = {path.name for path in tmp_path.iterdir()}
    assert f"{MODEL}@{first.version}.rsc" in names
    assert f"{MODEL}@{second.version}.rsc" not in names
    again = Fleet(server, guard_requests=N, disk=tmp_path, namespace=fleet.namespace)
    with again.watcher() as watcher:
        eventually(lambda: again.store.active == first.version)  # from the disk: the pointer still names the bad one
        assert eventually(lambda: watcher.snapshot().state == "quarantined")
        assert second.version in watcher.snapshot().condemned
    again.close()
    fleet.close()


def test_a_delta_that_withdraws_too_much_is_rolled_back_too(fleet: Fleet) -> None:
    deltas = DeltaPublisher(fleet.publisher)
    with fleet.watcher() as watcher:
        first = fleet.publish(range(10))
        eventually(lambda: fleet.store.active == first.version)
        answer(watcher, first.version)
        bad, _ = deltas.publish(deltas.head(MODEL), None, [np.arange(10)])
        eventually(lambda: fleet.store.active == bad.version and watcher.snapshot().state == "current")
        answer(watcher, bad.version, items=0)
        assert (fleet.store.active, fleet.store.resident()) == (first.version, (first.version,))
        with fleet.store.pin() as resident:
            assert resident.live_total() == 10
        eventually(lambda: bad.version in ack_of(fleet).condemned)


def withdraw(fleet: Fleet, *ids: int) -> str:
    """A delta over the current version becomes current; its name."""
    deltas = DeltaPublisher(fleet.publisher)
    return deltas.publish(deltas.head(MODEL), None, [np.array(ids)])[0].version


def taken(fleet: Fleet, watcher: Watcher, version: str) -> None:
    eventually(lambda: fleet.store.active == version and watcher.snapshot().state == "current")


def test_deltas_in_quick_succession_are_judged_together_and_the_last_good_version_comes_back(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        first, good = two_versions(fleet, watcher)
        answer(watcher, good.version)
        bad = [good.version]
        for item in range(5):
            bad.append(withdraw(fleet, item))
            taken(fleet, watcher, bad[-1])
            answer(watcher, bad[-1], items=0, count=N // 5)
        assert fleet.store.active == good.version
        assert fleet.store.resident() == (good.version,)  # not the four that were not judged
        assert set(watcher.snapshot().condemned) == {bad[1]}  # and with it those that change it
        assert first.version not in fleet.store.resident()


def test_the_fleet_goes_back_to_the_last_good_version_however_many_deltas_followed(fleet: Fleet) -> None:
    """Not to the delta before the last, which is as bad: publishers that are faster than the guard would stay there."""
    guard = FleetGuard(FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher), Quorum(1, 0.5))
    with fleet.watcher() as watcher:
        _, good = two_versions(fleet, watcher)
        answer(watcher, good.version)
        for item in range(10):
            version = withdraw(fleet, item)
            taken(fleet, watcher, version)
            answer(watcher, version, items=0, count=2)
        eventually(lambda: ack_of(fleet).condemned)
        withdraw(fleet, 17)  # meanwhile
        guard.once()
        pointer = fleet.publisher.pointer(MODEL)
        assert pointer is not None
        assert pointer.version == good.version
        after = withdraw(fleet, 18)
        taken(fleet, watcher, after)


def test_what_changes_a_bad_version_is_refused_until_that_one_is_released(fleet: Fleet) -> None:
    with fleet.watcher() as watcher:
        _, good = two_versions(fleet, watcher)
        answer(watcher, good.version)
        bad = withdraw(fleet, *range(20))
        taken(fleet, watcher, bad)
        answer(watcher, bad, items=0)
        child = withdraw(fleet, 77)
        eventually(lambda: watcher.snapshot().state == "quarantined" and watcher.snapshot().target == child)
        grandchild = withdraw(fleet, 78)
        eventually(lambda: watcher.snapshot().state == "quarantined" and watcher.snapshot().target == grandchild)
        assert f"it is a change of version {bad}: by this instance: empty_rate" in (watcher.snapshot().error or "")
        assert fleet.store.active == good.version
        DeltaPublisher(fleet.publisher).rebase(grandchild)  # no way around
        last = withdraw(fleet, 79)
        eventually(lambda: watcher.snapshot().state == "quarantined" and watcher.snapshot().target == last)
        FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher).release(bad)
        fleet.publisher.activate(last)
        taken(fleet, watcher, last)


def test_a_delta_that_was_staged_while_its_parent_was_found_bad_is_not_activated(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet.watcher() as watcher:
        _, good = two_versions(fleet, watcher)
        answer(watcher, good.version)
        bad = withdraw(fleet, *range(20))
        taken(fleet, watcher, bad)
        place = fleet.store.place

        def place_slowly(resident: ResidentCatalog) -> ResidentCatalog:
            found = place(resident)
            answer(watcher, bad, items=0)
            return found

        monkeypatch.setattr(fleet.store, "place", place_slowly)
        child = withdraw(fleet, 77)
        eventually(lambda: watcher.snapshot().state == "quarantined" and watcher.snapshot().target == child)
        assert fleet.store.resident() == (good.version,)
