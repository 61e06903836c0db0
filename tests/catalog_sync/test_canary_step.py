"""Canaries stand between staging and activation."""

from collections.abc import Iterator, Sequence
from threading import Event

import msgspec
import pytest

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Canary, Pointer
from engine.errors import CatalogError
from tests.catalog_sync.redis_support import Fleet, ack_of, version_with
from tests.consumer.waiting import eventually

CANARIES = (Canary({"history": [1]}, at_least=3, name="front page"),)


class Asked:
    """Answers as the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.versions: list[str] = []
        self.canaries: list[Sequence[Canary]] = []
        self.error: CatalogError | None = None
        self.gate = Event()
        self.gate.set()

    def __call__(self, version: str, canaries: Sequence[Canary], stop: Event) -> None:
        self.versions.append(version)
        self.canaries.append(canaries)
        self.gate.wait(10)
        if self.error is not None:
            raise self.error


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def fleet(server: EmbeddedRedis, asked: Asked) -> Iterator[Fleet]:
    running = Fleet(server, ask_canaries=asked)
    yield running
    running.close()


def publish(fleet: Fleet, item_ids: Sequence[int]) -> Pointer:
    manifest, data = version_with(item_ids)
    return fleet.publisher.publish(msgspec.structs.replace(manifest, canaries=CANARIES), data)


def test_they_run_on_the_staged_version_before_it_serves(fleet: Fleet, asked: Asked) -> None:
    asked.gate.clear()
    with fleet.watcher():
        pointer = publish(fleet, range(9))
        eventually(lambda: ack_of(fleet).state == "canary")
        assert (fleet.store.active, fleet.store.resident()) == (None, (pointer.version,))
        asked.gate.set()
        eventually(lambda: fleet.store.active == pointer.version)
    assert (asked.versions, asked.canaries) == ([pointer.version], [CANARIES])


def test_a_version_that_fails_them_is_refused_condemned_and_not_tried_again(fleet: Fleet, asked: Asked) -> None:
    with fleet.watcher() as watcher:
        good = fleet.publish(range(5))
        eventually(lambda: fleet.store.active == good.version)
        asked.error = CatalogError("canary", "canary 'front page' has 0 items, not at least 3")
        bad = publish(fleet, range(9))
        eventually(lambda: ack_of(fleet).condemned)
        ack = ack_of(fleet)
        assert (ack.version, ack.target, ack.state) == (good.version, bad.version, "refused")
        assert ack.condemned == {bad.version: "canary: canary 'front page' has 0 items, not at least 3"}
        assert fleet.store.resident() == (good.version,)
        fleet.publisher.activate(bad.version)
        eventually(lambda: watcher.snapshot().state == "quarantined")
    assert asked.versions == [bad.version]


def test_an_engine_without_time_for_them_is_no_verdict(fleet: Fleet, asked: Asked) -> None:
    asked.error = CatalogError("busy", "the engine did not answer")
    with fleet.watcher() as watcher:
        pointer = publish(fleet, range(9))
        eventually(lambda: watcher.snapshot().reason == "busy")
        asked.error = None
        eventually(lambda: fleet.store.active == pointer.version)
        assert watcher.snapshot().condemned == {}
    assert len(asked.versions) > 1


def test_a_resident_version_is_not_asked_again(fleet: Fleet, asked: Asked) -> None:
    with fleet.watcher():
        for items in (range(5), range(6)):
            pointer = publish(fleet, items)
            eventually(lambda: fleet.store.active == pointer.version)  # noqa: B023
        back = fleet.publisher.rollback("m")
        eventually(lambda: fleet.store.active == back.version)
    assert len(asked.versions) == 2
