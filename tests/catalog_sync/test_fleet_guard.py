"""What enough instances found bad is taken away from the whole fleet."""

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_guard import FleetGuard, Quorum, verdicts
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.layout import Ack, Condemnation, Manifest, Pointer
from catalog_sync.pins import Pins
from catalog_sync.prune import reasons_to_keep
from catalog_sync.publisher import FleetStatus
from engine.errors import CatalogError
from tests.catalog_sync.redis_support import MODEL, Fleet, version_with
from tests.consumer.waiting import eventually

TWO_AND_HALF = Quorum(2, 0.5)


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server)
    yield running
    running.close()


@pytest.fixture
def quarantine(fleet: Fleet) -> FleetQuarantine:
    return FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher)


def ack(number: int, *condemned: str, model: str = MODEL) -> Ack:
    why = dict.fromkeys(condemned, "empty_rate: 90.0% of 200 answers had no items")
    return Ack(f"i{number}", model, "v1", 1, "rolled_back", None, 1, condemned=why)


def status(*acks: Ack, quarantine: tuple[str, ...] = ()) -> FleetStatus:
    found = {version: Condemnation(version, "x", "y", 1, 1) for version in quarantine}
    return FleetStatus({}, (), acks, (), {}, found)


def write(fleet: Fleet, *acks: Ack) -> None:
    for each in acks:
        fleet.redis.set(fleet.keys.ack(each.instance), msgspec.json.encode(each))


@pytest.mark.parametrize(
    ("against", "living", "quorum", "condemned"),
    [
        (2, 4, TWO_AND_HALF, True),
        (2, 5, TWO_AND_HALF, False),  # less than the share
        (1, 1, TWO_AND_HALF, False),  # one sick machine condemns nothing
        (1, 1, Quorum(1, 0.5), True),
        (3, 100, Quorum(3, 0.0), True),
        (0, 3, Quorum(1, 0.0), False),
    ],
)
def test_a_verdict_needs_the_count_and_the_share(against: int, living: int, quorum: Quorum, condemned: bool) -> None:
    acks = [ack(n, *(["bad"] if n < against else [])) for n in range(living)]
    found = list(verdicts(status(*acks), quorum))
    assert [verdict.version for verdict in found] == (["bad"] if condemned else [])
    if condemned:
        assert f"{against} of {living} instances" in found[0].message
        assert "empty_rate" in found[0].message


def test_instances_of_another_model_have_no_say_and_what_is_quarantined_is_settled() -> None:
    acks = [ack(0, "bad"), ack(1, "bad"), *(ack(n, model="other") for n in range(2, 9))]
    assert [(each.model, each.version) for each in verdicts(status(*acks), TWO_AND_HALF)] == [(MODEL, "bad")]
    assert list(verdicts(status(*acks, quarantine=("bad",)), TWO_AND_HALF)) == []


def chained(*versions: str) -> tuple[Manifest, ...]:
    """A base and its deltas."""
    base = version_with(range(3))[0]
    parents = [None, *versions]
    return tuple(
        msgspec.structs.replace(base, version=version, parent=parent, parent_manifest=parent)
        for version, parent in zip(versions, parents, strict=False)
    )


def test_instances_that_blame_different_deltas_of_a_chain_agree_on_the_later_one() -> None:
    acks = [ack(0, "d1"), ack(1, "d3"), ack(2)]
    fleet = FleetStatus({}, chained("base", "d1", "d2", "d3"), tuple(acks), (), {}, {})
    assert [(each.version, each.message[:27]) for each in verdicts(fleet, TWO_AND_HALF)] == [
        ("d3", "2 of 3 instances found it b")
    ]
    assert list(verdicts(FleetStatus({}, chained("base", "d1"), tuple(acks), (), {}, {}), TWO_AND_HALF)) == []


def test_of_a_chain_only_the_first_bad_one_is_quarantined_and_what_follows_a_quarantined_one_is_settled() -> None:
    acks = (ack(0, "d1", "d2"), ack(1, "d1", "d2"))
    manifests = chained("base", "d1", "d2")
    assert [each.version for each in verdicts(FleetStatus({}, manifests, acks, (), {}, {}), TWO_AND_HALF)] == ["d1"]
    settled = {"base": Condemnation("base", "x", "y", 1, 1)}
    assert list(verdicts(FleetStatus({}, manifests, acks, (), {}, settled), TWO_AND_HALF)) == []


def delta(fleet: Fleet, *withdrawn: int) -> Pointer:
    deltas = DeltaPublisher(fleet.publisher)
    return deltas.publish(deltas.head(MODEL), None, [np.array(withdrawn)])[1]


def test_a_pointer_goes_back_to_before_a_quarantined_delta_however_many_came_after(
    fleet: Fleet, quarantine: FleetQuarantine
) -> None:
    fleet.publish(range(40))
    good = delta(fleet, 0)
    bad = delta(fleet, 1)
    for item in range(2, 22):  # more than a pointer's history holds
        last = delta(fleet, item)
    assert good.version not in last.history
    quarantine.condemn(bad.version, "operator", "x", "me")
    with pytest.raises(CatalogError, match="is quarantined") as caught:
        fleet.publisher.activate(last.version)
    assert caught.value.reason == "quarantined"
    pointer = fleet.publisher.pointer(MODEL)
    assert pointer is not None
    assert (pointer.version, pointer.history) == (good.version, ())
    with pytest.raises(CatalogError, match=f"a change of version {bad.version}"):
        Pins(fleet.redis, fleet.keys).serve("g", last.version)
    with fleet.watcher():
        eventually(lambda: fleet.store.active == good.version)


def test_a_rollback_passes_over_deltas_of_a_quarantined_version(fleet: Fleet, quarantine: FleetQuarantine) -> None:
    good = fleet.publish(range(40))
    bad = delta(fleet, 1)
    delta(fleet, 2)
    other = fleet.publish(range(30))
    quarantine.condemn(bad.version, "operator", "x", "me")
    assert fleet.publisher.pointer(MODEL) == other
    kept = reasons_to_keep(fleet.publisher.status(), 0)
    assert kept[good.version] == f"a rollback of model {MODEL} goes there"
    assert fleet.publisher.rollback(MODEL).version == good.version


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 5), st.floats(0, 1))
def test_more_votes_against_never_save_a_version(votes: list[bool], count: int, share: float) -> None:
    def condemned(votes: list[bool]) -> bool:
        acks = [ack(n, *(["bad"] if vote else [])) for n, vote in enumerate(votes)]
        return bool(list(verdicts(status(*acks), Quorum(count, share))))

    if condemned(votes):
        assert all(condemned([*votes[:at], True, *votes[at + 1 :]]) for at in range(len(votes)))


def test_the_guard_quarantines_and_moves_the_pointer_and_every_instance_follows(
    fleet: Fleet, quarantine: FleetQuarantine
) -> None:
    good, bad = fleet.publish(range(5)), fleet.publish(range(6))
    with fleet.watcher() as watcher:
        eventually(lambda: fleet.store.active == bad.version)
        guard = FleetGuard(quarantine, TWO_AND_HALF)
        write(fleet, ack(1, bad.version))
        assert guard.once() == []
        write(fleet, ack(2, bad.version))
        said = guard.once()
        assert [line.split()[1] for line in said] == [bad.version, good.version]
        eventually(lambda: fleet.store.active == good.version)
        assert guard.once() == []
        with pytest.raises(CatalogError) as caught:
            fleet.publisher.activate(bad.version)
        assert caught.value.reason == "quarantined"
        quarantine.release(bad.version)
        again = fleet.publisher.activate(bad.version)
        eventually(lambda: watcher.snapshot().generation == again.generation)


def test_an_instance_refuses_what_the_fleet_quarantined(fleet: Fleet, quarantine: FleetQuarantine) -> None:
    good, bad = fleet.publish(range(5)), fleet.publish(range(6))
    raw: dict[Any, Any] = fleet.redis.hgetall(fleet.keys.current(MODEL))
    quarantine.condemn(bad.version, "operator", "films without titles", "ann")
    with fleet.watcher() as watcher:
        eventually(lambda: fleet.store.active == good.version)
        fleet.redis.hset(fleet.keys.current(MODEL), mapping=raw)  # as a publisher would that knows no quarantine
        fleet.redis.publish(fleet.keys.notify, 1)
        eventually(lambda: watcher.snapshot().state == "quarantined")
        error = watcher.snapshot().error
        assert error is not None
        assert "by ann: operator: films without titles" in error
        assert fleet.store.active == good.version


def test_a_quarantine_killed_before_the_pointer_moved_is_finished_by_the_next_pass(
    fleet: Fleet, quarantine: FleetQuarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = fleet.publish(range(5)), fleet.publish(range(6))
    monkeypatch.setattr(fleet.publisher, "rollback", lambda _: (_ for _ in ()).throw(redis.ConnectionError("killed")))
    with pytest.raises(redis.ConnectionError):
        quarantine.condemn(bad.version, "operator", "x", "me")
    monkeypatch.undo()
    assert FleetGuard(quarantine, TWO_AND_HALF).once()
    pointer = fleet.publisher.pointer(MODEL)
    assert pointer is not None
    assert pointer.version == good.version


def test_without_a_version_to_go_back_to_the_quarantine_stands_and_says_so(
    fleet: Fleet, quarantine: FleetQuarantine
) -> None:
    only = fleet.publish(range(5))
    write(fleet, ack(1, only.version), ack(2, only.version))
    said = FleetGuard(quarantine, TWO_AND_HALF).once()
    assert any("no version to go back to" in line for line in said)
    assert only.version in fleet.publisher.status().quarantine


def test_a_rollback_passes_over_quarantined_versions(fleet: Fleet, quarantine: FleetQuarantine) -> None:
    first, second, third = (fleet.publish(range(n)) for n in (5, 6, 7))
    quarantine.condemn(second.version, "operator", "x", "me")
    assert fleet.publisher.pointer(MODEL) == third
    back = fleet.publisher.rollback(MODEL)
    assert (back.version, back.history) == (first.version, ())


def test_the_long_run_outlives_redis_and_says_a_thing_once() -> None:
    with EmbeddedRedis() as own:
        fleet = Fleet(own)
        good, bad = fleet.publish(range(5)), fleet.publish(range(6))
        quarantine = FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher)
        stop, said = threading.Event(), list[str]()
        thread = threading.Thread(target=FleetGuard(quarantine, TWO_AND_HALF).run, args=(0.01, stop, said.append))
        own.kill()
        thread.start()
        eventually(lambda: len(said) == 1 and said[0].startswith("Redis: "))
        own.start()
        for items in (range(5), range(6)):
            fleet.publish(items)
        write(fleet, ack(1, bad.version), ack(2, bad.version))
        eventually(lambda: (now := fleet.publisher.pointer(MODEL)) and now.version == good.version)
        eventually(lambda: len(said) >= 3)
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
        assert sum(bad.version in line for line in said) == 1
        fleet.close()


def test_no_delta_is_made_of_what_is_quarantined_and_still_current(fleet: Fleet, quarantine: FleetQuarantine) -> None:
    first = fleet.publish(range(5))
    with pytest.raises(CatalogError, match="no version to go back to"):
        quarantine.condemn(first.version, "x", "y", "test")
    deltas = DeltaPublisher(fleet.publisher)
    with pytest.raises(CatalogError, match=f"version {first.version} is quarantined: no instance takes a delta of it"):
        deltas.head(MODEL)
    good = fleet.publish(range(6))
    assert deltas.head(MODEL).pointer == good


def test_a_version_whose_parent_is_gone_is_not_made_current(fleet: Fleet) -> None:
    first = fleet.publish(range(5))
    deltas = DeltaPublisher(fleet.publisher)
    child = deltas.publish(deltas.head(MODEL), None, [np.array([1])])[0]
    last = fleet.publish(range(6))
    fleet.redis.delete(fleet.keys.manifest(first.version))
    with pytest.raises(CatalogError, match=f"the manifest of version {first.version} is not in Redis"):
        fleet.publisher.activate(child.version)
    assert fleet.publisher.pointer(MODEL) == last
