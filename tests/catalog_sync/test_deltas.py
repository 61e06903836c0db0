import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import numpy as np
import pytest

from catalog_sync import blob, deltas
from catalog_sync.changes import make_delta
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fetch import Link, decode_as, fetch_blob, fetch_chain
from catalog_sync.layout import Manifest, Pointer
from catalog_sync.prune import Pruner
from engine.catalog.catalog import Catalog
from engine.errors import CatalogError
from tests.catalog_sync.redis_support import MODEL, SIZES, Fleet
from tests.catalog_sync.test_watcher import until_active, until_state
from tests.consumer.waiting import eventually
from tests.engine.catalogs import Item, catalog_of


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server)
    yield running
    running.close()


def item(item_id: int, code: int | None = None) -> Item:
    codes = tuple((item_id if code is None else code) % size for size in SIZES)
    return Item(item_id, codes, tags=frozenset({f"t{item_id % 5}"}))


def catalog(*items: Item) -> Catalog:
    return catalog_of(items, SIZES, version="", model=MODEL)


def start(fleet: Fleet, *items: Item) -> Pointer:
    data = blob.encode(catalog(*items))
    return fleet.publisher.publish(Manifest.of(blob.decode(data), data), data)


def publisher_of(fleet: Fleet) -> DeltaPublisher:
    return DeltaPublisher(fleet.publisher)


def change(fleet: Fleet, add: list[Item] | None = None, withdraw: list[int] | None = None) -> Pointer:
    publisher = publisher_of(fleet)
    gone = [np.array(withdraw, dtype=np.int64)] if withdraw else []
    return publisher.publish(publisher.head(MODEL), catalog(*add) if add else None, gone)[1]


def current(fleet: Fleet) -> Pointer:
    pointer = fleet.publisher.pointer(MODEL)
    assert pointer is not None
    return pointer


def served(fleet: Fleet) -> dict[int, tuple[int, bool]]:
    """First code and live-ness of every item that is active."""
    with fleet.store.pin() as held:
        every = np.arange(held.items)
        live = np.diff(held.live_counts().numpy()).astype(bool).tolist()
        codes = held.codes_of(every)[:, 0].tolist()
        return dict(zip(map(int, held.ids_of(every)), zip(codes, live, strict=True), strict=True))


def test_a_watching_instance_makes_every_delta_of_its_resident_parent(fleet: Fleet) -> None:
    first = start(fleet, item(1), item(2))
    with fleet.watcher():
        until_active(fleet, first)
        until_active(fleet, change(fleet, add=[item(3), item(2, code=9)], withdraw=[1]))
        assert served(fleet) == {1: (1, False), 2: (9, True), 3: (3, True)}
        until_active(fleet, change(fleet, withdraw=[3, 77]))
        assert served(fleet) == {1: (1, False), 2: (9, True), 3: (3, False)}
        until_active(fleet, change(fleet, add=[item(1)]))
        assert served(fleet) == {1: (1, True), 2: (9, True), 3: (3, False)}
        assert fleet.redis.exists(fleet.keys.chunk(first.version, 0))
        fleet.redis.delete(fleet.keys.chunk(first.version, 0))  # nothing of the base is fetched again
        until_active(fleet, change(fleet, add=[item(4)]))
        assert served(fleet)[4] == (4, True)


def test_an_instance_that_starts_with_nothing_follows_the_chain(fleet: Fleet) -> None:
    start(fleet, item(1), item(2))
    change(fleet, add=[item(3)])
    last = change(fleet, withdraw=[1])
    with fleet.watcher():
        until_active(fleet, last)
        assert served(fleet) == {1: (1, False), 2: (2, True), 3: (3, True)}
        assert fleet.store.resident() == (last.version,)


def test_an_instance_that_missed_several_deltas_catches_up_from_what_it_has(fleet: Fleet) -> None:
    first = start(fleet, item(1), item(2))
    with fleet.watcher():
        until_active(fleet, first)
    change(fleet, add=[item(3)])
    last = change(fleet, add=[item(4)])
    fleet.redis.delete(fleet.keys.chunk(first.version, 0))
    with fleet.watcher():
        until_active(fleet, last)
        assert sorted(served(fleet)) == [1, 2, 3, 4]


def test_a_full_form_has_the_bytes_of_a_rebuilt_base_and_spares_a_start_the_chain(fleet: Fleet) -> None:
    first = start(fleet, item(1), item(2))
    second = change(fleet, add=[item(3)])
    full = publisher_of(fleet).rebase(second.version)
    data = blob.encode(catalog(item(1), item(2), item(3)))
    assert (full.version, full.full_of) == (blob.version_of(data), second.version)
    assert publisher_of(fleet).rebase(second.version) == full
    last = change(fleet, withdraw=[2])
    assert publisher_of(fleet).chain_length(fleet.publisher.manifest(last.version)) == 1
    for version in (first.version, second.version):
        fleet.redis.delete(fleet.keys.chunk(version, 0))
    with fleet.watcher():
        until_active(fleet, last)
        assert served(fleet) == {1: (1, True), 2: (2, False), 3: (3, True)}


def nothing_is_renewed() -> bool:
    return not any(thread.name == "catalog-renewal" for thread in threading.enumerate())


def test_a_version_to_which_deltas_brought_much_is_built_on_a_full_form_beside_the_deltas_that_follow(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catalog_sync.renewal.OVERLAY_LIMIT", 0)
    monkeypatch.setattr("catalog_sync.renewal.PAUSE_SECONDS", 0)
    fetching, go_on = Event(), Event()
    slow = fetch_blob

    def fetch_slowly(*args: Any) -> memoryview:
        fetching.set()
        assert go_on.wait(30)
        return slow(*args)

    monkeypatch.setattr("catalog_sync.renewal.fetch_blob", fetch_slowly)
    first = start(fleet, item(1), item(2))
    with fleet.watcher():
        until_active(fleet, first)
        second = change(fleet, add=[item(3)])
        until_active(fleet, second)
        until_active(fleet, change(fleet, withdraw=[1]))  # there is no full form yet
        publisher_of(fleet).rebase(second.version)
        eventually(nothing_is_renewed)
        until_active(fleet, change(fleet, add=[item(4)]))
        assert fetching.wait(30)
        for number in (5, 6):  # nobody waits for the full form
            until_active(fleet, change(fleet, add=[item(number)]))
        with fleet.store.pin() as held:
            assert held.overlaid == 4
        go_on.set()
        eventually(nothing_is_renewed)
        until_active(fleet, change(fleet, withdraw=[2]))
        live = {1: (1, False), 2: (2, False), **{n: (n, True) for n in (3, 4, 5, 6)}}
        assert served(fleet) == live
        with fleet.store.pin() as held:
            assert held.overlaid == 3  # items 4, 5 and 6; item 3 is in the base
        until_active(fleet, change(fleet, add=[item(2)]))
        assert served(fleet) == live | {2: (2, True)}


def test_a_long_chain_is_built_on_a_full_form_too_and_its_files_on_disk_go(
    server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catalog_sync.renewal.CHAIN_LIMIT", 8)
    monkeypatch.setattr("catalog_sync.renewal.PAUSE_SECONDS", 0)
    fleet = Fleet(server, disk=tmp_path)
    first = start(fleet, *(item(number) for number in range(30)))
    with fleet.watcher():
        until_active(fleet, first)
        for number in range(8):
            until_active(fleet, change(fleet, withdraw=[number]))
        publisher_of(fleet).rebase(current(fleet).version)
        assert len(list(tmp_path.glob("*.rsc"))) == 9
        until_active(fleet, change(fleet, withdraw=[8]))
        eventually(nothing_is_renewed)
        last = change(fleet, withdraw=[9])
        until_active(fleet, last)
        assert fleet.store.deltas(last.version) == (2, 0)
        later = change(fleet, withdraw=[10])
        until_active(fleet, later)
        eventually(lambda: len(list(tmp_path.glob("*.rsc"))) == 4)  # the full form and three deltas
    fleet.redis.flushall()
    again = Fleet(server, disk=tmp_path, namespace=fleet.namespace)
    with again.watcher():
        eventually(lambda: again.store.active == later.version)
        assert [number for number, (_, live) in served(again).items() if live] == list(range(11, 30))


def test_what_goes_wrong_with_a_full_form_beside_the_deltas_touches_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("catalog_sync.renewal.OVERLAY_LIMIT", 0)
    monkeypatch.setattr("catalog_sync.renewal.PAUSE_SECONDS", 0)
    first = start(fleet, item(1), item(2))
    with fleet.watcher() as watcher:
        until_active(fleet, first)
        second = change(fleet, add=[item(3)])
        until_active(fleet, second)
        full = publisher_of(fleet).rebase(second.version)
        fleet.redis.set(fleet.keys.chunk(full.version, 0), b"damaged")
        eventually(nothing_is_renewed)
        until_active(fleet, change(fleet, add=[item(4)]))
        eventually(lambda: "is not built anew on a full form" in caplog.text)
        until_active(fleet, change(fleet, add=[item(5)]))
        assert watcher.snapshot().refused == {}
        assert sorted(served(fleet)) == [1, 2, 3, 4, 5]


def test_a_full_form_of_another_version_is_refused(fleet: Fleet) -> None:
    start(fleet, item(1))
    second = change(fleet, add=[item(2)])
    third = change(fleet, add=[item(3)])
    publisher_of(fleet).rebase(second.version)
    fleet.redis.set(fleet.keys.full(third.version), fleet.redis.get(fleet.keys.full(second.version)) or b"")
    with fleet.watcher() as watcher:
        until_state(watcher, "refused", "manifest")


def test_a_delta_whose_bytes_name_another_parent_than_its_manifest_is_refused(fleet: Fleet) -> None:
    first = start(fleet, item(1), item(2))
    second = change(fleet, withdraw=[1])
    with fleet.watcher() as watcher:
        until_active(fleet, second)
        head = publisher_of(fleet).head(MODEL)
        delta, data = make_delta(fleet.publisher.manifest(first.version), catalog(item(3)), [])
        fleet.publisher.publish(Manifest.of_delta(replace(delta, parent=second.version), data, head.manifest,
                                                  head.pointer.manifest), data)  # fmt: skip
        until_state(watcher, "refused", "manifest")
        assert served(fleet)[1] == (1, False)


def test_a_parent_whose_manifest_was_exchanged_is_refused(fleet: Fleet) -> None:
    first = start(fleet, item(1))
    change(fleet, add=[item(2)])
    manifest = fleet.publisher.manifest(first.version)
    raw = msgspec.json.encode(msgspec.structs.replace(manifest, label="other"))
    fleet.redis.set(fleet.keys.manifest(first.version), raw)
    with fleet.watcher() as watcher:
        until_state(watcher, "refused", "checksum")


def test_a_delta_of_a_version_that_is_not_current_any_more_is_a_conflict(fleet: Fleet) -> None:
    start(fleet, item(1))
    head = publisher_of(fleet).head(MODEL)
    current = change(fleet, add=[item(2)])
    with pytest.raises(CatalogError) as caught:
        publisher_of(fleet).publish(head, catalog(item(3)), [])
    assert caught.value.reason == "conflict"
    assert fleet.publisher.pointer(MODEL) == current


def test_a_chain_is_bounded_until_it_is_rebased(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("deltas", "fetch"):
        monkeypatch.setattr(f"catalog_sync.{module}.CHAIN_LIMIT", 2)
    start(fleet, item(1))
    change(fleet, add=[item(2)])
    second = change(fleet, add=[item(3)])
    with pytest.raises(CatalogError) as caught:
        change(fleet, add=[item(4)])
    assert caught.value.reason == "chain"
    publisher_of(fleet).rebase(second.version)
    last = change(fleet, add=[item(4)])
    with fleet.watcher():
        until_active(fleet, last)


def test_a_chain_longer_than_the_bound_is_refused(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    start(fleet, item(1))
    for number in range(2, 5):
        change(fleet, add=[item(number)])
    monkeypatch.setattr("catalog_sync.fetch.CHAIN_LIMIT", 2)
    with fleet.watcher() as watcher:
        until_state(watcher, "refused", "chain")


@pytest.mark.parametrize("rebased", [False, True])
def test_a_start_without_redis_has_the_base_and_its_deltas_from_disk(
    server: EmbeddedRedis, tmp_path: Path, rebased: bool
) -> None:
    fleet = Fleet(server, disk=tmp_path)
    start(fleet, item(1), item(2))
    middle = change(fleet, add=[item(3)])
    if rebased:
        publisher_of(fleet).rebase(middle.version)
    with fleet.watcher():
        until_active(fleet, middle)
        last = change(fleet, withdraw=[1])
        until_active(fleet, last)
    fleet.close()
    later = Fleet(server, disk=tmp_path)
    with later.watcher():
        until_active(later, last)
        assert served(later) == {1: (1, False), 2: (2, True), 3: (3, True)}
    later.close()


def test_a_chain_read_from_redis_is_the_catalog_of_all_its_items(fleet: Fleet) -> None:
    start(fleet, item(1), item(2))
    last = change(fleet, add=[item(3, code=1), item(2, code=1)])
    chain = fetch_chain(fleet.redis, fleet.keys, fleet.publisher.manifest(last.version), lambda _: None)
    parts = [decode_as(link, fetch_blob(fleet.redis, fleet.keys, link.manifest, Event())) for link in chain]
    assert [type(link) for link in chain] == [Link, Link]
    whole = catalog(item(1), item(2, code=1), item(3, code=1))
    assert blob.encode(deltas.merged(parts, "")) == blob.encode(whole)
    with pytest.raises(CatalogError, match="builds on another"):
        deltas.merged(parts[1:], "")
    with pytest.raises(CatalogError, match="does not change"):
        deltas.merged([parts[0], parts[1], parts[1]], "")


def test_a_chain_before_a_full_form_is_pruned_and_a_start_still_finds_its_way(fleet: Fleet) -> None:
    first = start(fleet, item(1), item(2))
    middle = [change(fleet, add=[item(number)]) for number in range(3, 6)]
    full = publisher_of(fleet).rebase(middle[-1].version)
    last = change(fleet, withdraw=[1])
    pruned = Pruner(fleet.redis, fleet.keys, fleet.publisher).prune(0)
    assert set(pruned.versions) == {first.version, *(pointer.version for pointer in middle[:-1])}
    assert full.version in pruned.kept
    with fleet.watcher():
        until_active(fleet, last)
        assert served(fleet) == {1: (1, False)} | {number: (number, True) for number in range(2, 6)}
