"""Publishers, operators and instances that all act at once: every version that is served is what it should be."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from catalog_sync import blob, prune, renewal
from catalog_sync.changes import make_delta
from catalog_sync.connection import connect
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.layout import Manifest
from catalog_sync.pins import Pins
from catalog_sync.prune import Pruner
from catalog_sync.publisher import Publisher
from catalog_sync.watcher import Watcher
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.catalog.store import CatalogStore
from engine.errors import CatalogError, RequestError
from tests.catalog_sync.redis_support import MODEL, SIZES, Fleet
from tests.consumer.waiting import eventually

pytestmark = pytest.mark.stress

SECONDS, ACTORS, INSTANCES, IDS = 20.0, 3, 3, 60
EXPECTED = {
    "activate": {"conflict", "unknown_version", "quarantined", "missing"},
    "base": {"conflict", "quarantined", "unknown_version", "verify"},
    "delta": {"conflict", "no_version", "quarantined", "verify", "unknown_version"},
    "pin": {"unknown_version", "quarantined"},
    "prune": set[str](),
    "quarantine": {"unknown_version", "no_previous", "conflict"},
    "rebase": {"unknown_version", "missing", "verify"},
    "release": {"not_quarantined"},
    "rollback": {"no_previous", "conflict", "unknown_version", "quarantined"},
    "unpin": {"not_pinned"},
}
"""What may be refused of what actors do, for another one was faster."""
WEIGHTS = {"base": 4, "delta": 60, "prune": 8, "rebase": 6, "activate": 4, "unpin": 3} | dict.fromkeys(
    ("rollback", "quarantine", "release", "pin"), 2
)

Items = dict[int, tuple[tuple[int, int], bool]]
"""SID and whether it may be recalled, by id."""


class Versions:
    """What every version should hold, noted before it can be current."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[str, Items] = {}

    def note(self, version: str, items: Items) -> None:
        with self._lock:
            assert self._items.setdefault(version, items) == items

    def items(self, version: str) -> Items:
        with self._lock:
            return self._items[version]

    def some(self, choose: random.Random) -> str:
        with self._lock:
            return choose.choice(list(self._items)[-20:])


def catalog_of(items: Items) -> Catalog:
    ids = np.array(sorted(items), np.int64)
    sids = np.array([items[each][0] for each in ids.tolist()], np.int32).reshape(-1, 2)
    recallable = np.array([items[each][1] for each in ids.tolist()], np.bool_)
    return build_catalog(version="", model=MODEL, sizes=SIZES, ids=ids, sids=sids, recallable=recallable)


class Actor(threading.Thread):
    """Does one thing after the other until ``stop``; ``done`` counts what, ``faults`` what must not be."""

    def __init__(self, fleet: Fleet, versions: Versions, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self._versions, self._choose, self._stop_all = versions, random.Random(seed), stop
        self._redis, self._keys = connect(fleet.settings), fleet.keys
        self._publisher = Publisher(self._redis, fleet.namespace)
        self._deltas = DeltaPublisher(self._publisher)
        self.done, self.faults = Counter[str](), list[str]()

    def run(self) -> None:
        with self._redis:
            while not self._stop_all.is_set():
                (what,) = self._choose.choices(list(WEIGHTS), list(WEIGHTS.values()))
                try:
                    getattr(self, f"_{what}")()
                    self.done[what] += 1
                except CatalogError as error:
                    if error.reason not in EXPECTED[what]:
                        self.faults.append(f"{what}: {error.reason}: {error.message}")
                except Exception as error:
                    self.faults.append(f"{what}: {error!r}")
                time.sleep(self._choose.random() * 0.02)

    def _some(self, most: int) -> Items:
        number = self._choose.randrange
        return {number(IDS): ((number(64), number(3)), self._choose.random() < 0.9) for _ in range(number(most))}

    def _base(self) -> None:
        items = self._some(40) | {0: ((0, 0), True)}
        data = blob.encode(catalog_of(items))
        catalog = blob.decode(data)
        self._versions.note(catalog.version, items)
        self._publisher.publish(Manifest.of(catalog, data), data)

    def _delta(self) -> None:
        head, upserts = self._deltas.head(MODEL), self._some(4)
        gone = [each for each in self._some(3) if each not in upserts] or [IDS]
        items = self._versions.items(head.pointer.version) | upserts
        items |= {each: (items[each][0], False) for each in gone if each in items}
        change = catalog_of(upserts) if upserts else None
        self._versions.note(make_delta(head.manifest, change, [np.array(gone)])[0].version, items)
        self._deltas.publish(head, change, [np.array(gone)])

    def _activate(self) -> None:
        self._publisher.activate(self._versions.some(self._choose))

    def _rollback(self) -> None:
        self._publisher.rollback(MODEL)

    def _quarantine(self) -> None:
        FleetQuarantine(self._redis, self._keys, self._publisher).condemn(
            self._versions.some(self._choose), "empty", "it is bad", "test"
        )

    def _release(self) -> None:
        for version in self._publisher.quarantine():
            FleetQuarantine(self._redis, self._keys, self._publisher).release(version)

    def _prune(self) -> None:
        Pruner(self._redis, self._keys, self._publisher).prune(self._choose.randrange(4))

    def _rebase(self) -> None:
        if pointer := self._publisher.pointer(MODEL):
            self._deltas.rebase(pointer.version)

    def _pin(self) -> None:
        Pins(self._redis, self._keys).keep("g", self._versions.some(self._choose))

    def _unpin(self) -> None:
        Pins(self._redis, self._keys).remove("g")


class Instance:
    """A watcher and its store, with a disk; may be started anew."""

    def __init__(self, fleet: Fleet, number: int, disk: Path) -> None:
        here = {"instance": f"i{number}", "group": "g", "disk": disk / str(number)}
        self._settings = fleet.settings.model_copy(update=here)
        self.start()

    def start(self) -> None:
        self.store = CatalogStore(torch.device("cpu"), MODEL, SIZES, lambda: 1 << 40)
        self.watcher = Watcher(self._settings, self.store)
        self.watcher.start()

    def fault(self, versions: Versions) -> str | None:
        """How what it serves differs from what that version should hold."""
        try:
            with self.store.pin() as resident:
                expected, rows = versions.items(resident.version), np.arange(resident.items)
                sids = [tuple(each) for each in resident.codes_of(rows).tolist()]
                held = dict(zip(resident.ids_of(rows), zip(sids, resident.passes(rows), strict=True), strict=True))
                live = sum(recallable for _, recallable in expected.values())
                if held != expected or resident.live_total() != live:
                    return f"version {resident.version} holds {held}, not {expected}"
        except RequestError as error:
            return None if error.code == "no_catalog" else repr(error)
        refused = self.watcher.snapshot().refused
        return f"refused: {refused}" if refused.keys() & {"internal", "structure", "manifest", "checksum"} else None


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server, poll_seconds=0.5)
    yield running
    running.close()


def test_whatever_is_done_at_once_what_is_served_is_right_and_the_fleet_follows_the_pointer(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "CHAIN_LIMIT", 6)
    monkeypatch.setattr(renewal, "PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(prune, "ORPHAN_IDLE_SECONDS", 2)
    seed = random.randrange(1 << 30)
    choose, stop, versions = random.Random(seed), threading.Event(), Versions()
    first = Actor(fleet, versions, seed, stop)
    first._base()  # noqa: SLF001  (something to begin with)
    actors = [first, *(Actor(fleet, versions, seed + number, stop) for number in range(1, ACTORS))]
    instances = [Instance(fleet, number, tmp_path) for number in range(INSTANCES)]
    faults = list[str]()
    for actor in actors:
        actor.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not faults:
        faults += [fault for each in instances if (fault := each.fault(versions))]
        if choose.random() < 0.004:
            again = choose.choice(instances)
            again.watcher.stop()
            again.start()
        time.sleep(0.01)
    stop.set()
    for actor in actors:
        actor.join()
        faults += actor.faults
    pointer = fleet.publisher.publish(*_last(versions))
    eventually(lambda: all(each.store.active == pointer.version for each in instances), 20)
    faults += [fault for each in instances if (fault := each.fault(versions))]
    for each in instances:
        each.watcher.stop()
    assert not faults, f"seed {seed}"
    assert (sum((actor.done for actor in actors), Counter[str]())).keys() == WEIGHTS.keys()


def _last(versions: Versions) -> tuple[Manifest, bytearray]:
    items: Items = {IDS + 1: ((1, 1), True)}
    data = blob.encode(catalog_of(items))
    catalog = blob.decode(data)
    versions.note(catalog.version, items)
    return Manifest.of(catalog, data), data
