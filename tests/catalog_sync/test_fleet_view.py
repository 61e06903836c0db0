from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from catalog_sync.ancestry import ancestors
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.fleet_view import FRESH_SECONDS, FleetView
from catalog_sync.layout import Ack
from catalog_sync.overview import overview
from catalog_sync.pins import Pins
from catalog_sync.publisher import FleetStatus
from tests.catalog_sync.redis_support import MODEL, Fleet
from tests.catalog_sync.test_redis_access import documented_rules
from tests.consumer.waiting import eventually


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server, group="g")
    yield running
    running.close()


def seen(view: FleetView) -> dict[str, str]:
    return {version["version"]: version["standing"] for version in view.look().get("versions", ())}


def test_versions_stand_by_model_and_history_with_all_that_is_said_of_them(fleet: Fleet) -> None:
    first, second, third = (fleet.publish(range(n), label=f"n{n}") for n in (5, 6, 7))
    Pins(fleet.redis, fleet.keys).keep("g", first.version)
    FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher).condemn(second.version, "operator", "x", "ann")
    with fleet.watcher():
        eventually(lambda: fleet.publisher.status().acks and fleet.publisher.status().acks[0].version == third.version)
        eventually(lambda: fleet.publisher.status().acks[0].kept.get(first.version) == "resident")
        shown = overview(fleet.publisher.status(), 0)
    rows = [(version["version"], version["standing"]) for version in shown["versions"]]
    assert rows == [(third.version, "current"), (second.version, "quarantined"), (first.version, "rollback")]
    newest, _, oldest = shown["versions"]
    assert (newest["active_on"], newest["resident_on"], newest["label"]) == (1, 1, "n7")
    assert (oldest["pinned_by"], oldest["active_on"], oldest["resident_on"]) == (["g"], 0, 1)
    assert shown["pins"]["g"]["keep"] == [first.version]
    assert shown["quarantine"][second.version]["by"] == "ann"
    [instance] = shown["instances"]
    assert (instance["group"], instance["state"], instance["age_s"]) == ("g", "current", 0.0)


def test_a_chain_of_deltas_is_followed_and_a_ring_ends() -> None:
    assert ancestors("d2", {"d2": "d1", "d1": "base", "base": None}) == ["d1", "base"]
    assert ancestors("base", {"base": None}) == []
    assert ancestors("a", {"a": "b", "b": "a"}) == ["b", "a"]


def test_looking_never_waits_and_what_is_fresh_is_not_read_again(fleet: Fleet) -> None:
    clock = Clock()
    pointer = fleet.publish(range(5))
    view = FleetView(fleet.settings, MODEL, clock)
    assert view.look()["age_s"] is None
    eventually(lambda: seen(view) == {pointer.version: "current"})
    again = fleet.publish(range(6))
    clock.now += FRESH_SECONDS / 2
    assert seen(view) == {pointer.version: "current"}
    clock.now += FRESH_SECONDS
    eventually(lambda: seen(view) == {again.version: "current", pointer.version: "rollback"})
    view.close()


def test_without_redis_the_last_look_stays_with_its_age_and_the_error() -> None:
    with EmbeddedRedis() as own:
        fleet, clock = Fleet(own), Clock()
        pointer = fleet.publish(range(5))
        view = FleetView(fleet.settings, MODEL, clock)
        eventually(lambda: seen(view))
        own.kill()
        clock.now += 60
        look = eventually(lambda: (now := view.look())["error"] and now)
        assert [version["version"] for version in look["versions"]] == [pointer.version]
        view.close()
        fleet.close()


def test_a_user_that_may_not_scan_sees_its_own_part(fleet: Fleet) -> None:
    first, second = fleet.publish(range(5)), fleet.publish(range(6))
    Pins(fleet.redis, fleet.keys).keep("g", first.version)
    fleet.connect_as("consumer", "pass", documented_rules("consumer", fleet))
    assert isinstance(fleet.settings.url, SecretStr)
    with fleet.watcher():
        eventually(lambda: fleet.publisher.status().acks)
        view = FleetView(fleet.settings, MODEL)
        eventually(lambda: seen(view) == {second.version: "current", first.version: "rollback"})
        look = view.look()
        assert "SCAN" in look["error"]
        assert [each["instance"] for each in look["instances"]] == [fleet.settings.instance]
        assert look["pins"]["g"]["keep"] == [first.version]
        view.close()


def test_acks_of_models_without_a_pointer_are_shown_too() -> None:
    status = FleetStatus({}, (), (Ack("i", "m", None, 0, "no_pointer", "no_pointer: x", 500),), (), {}, {})
    [instance] = overview(status, 1500)["instances"]
    assert (instance["state"], instance["age_s"]) == ("no_pointer", 1.0)
