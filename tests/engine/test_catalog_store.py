import threading
from typing import Any

import numpy as np
import pytest
import torch

from engine.catalog.resident import ResidentCatalog
from engine.catalog.store import CatalogStore, free_memory_of
from engine.errors import CatalogError, RequestError
from tests.engine.catalogs import Item, catalog_of

CPU = torch.device("cpu")
PLENTY = 1 << 40
ITEM_BYTES = 2 + 1  # its code and whether it is recallable


def store(free: int = PLENTY) -> CatalogStore:
    return CatalogStore(CPU, "m", (4,), lambda: free)


def load(catalogs: CatalogStore, version: str) -> None:
    catalogs.stage(catalog_of([Item(1, (0,))], (4,), version=version))
    catalogs.activate(version)


def test_nothing_is_served_before_the_first_activation() -> None:
    catalogs = store()
    catalogs.stage(catalog_of([Item(1, (0,))], (4,)))
    assert (catalogs.active, catalogs.previous, catalogs.resident()) == (None, None, ("v1",))
    with pytest.raises(RequestError) as caught, catalogs.pin():
        pass
    assert caught.value.code == "no_catalog"


def test_ids_are_checked_against_those_of_the_active_version_which_may_be_none_yet() -> None:
    catalogs = store()
    catalogs.check_ids(["a"])
    load(catalogs, "v1")
    catalogs.check_ids(np.array([1, 77]))
    catalogs.check_ids([])
    with pytest.raises(RequestError, match="item ids are strings, this catalog's are integers"):
        catalogs.check_ids(["a"])


def test_a_swap_keeps_the_previous_version_and_drops_the_one_before() -> None:
    catalogs = store()
    for version in ("v1", "v2", "v3"):
        load(catalogs, version)
    assert (catalogs.active, catalogs.previous, catalogs.resident()) == ("v3", "v2", ("v3", "v2"))
    with catalogs.pin() as active, catalogs.pin("v2") as previous:
        assert (active.version, previous.version) == ("v3", "v2")
    with pytest.raises(RequestError) as caught, catalogs.pin("v1"):
        pass
    assert caught.value.code == "unknown_catalog"


def test_rollback_swaps_back_without_an_upload() -> None:
    catalogs = store()
    load(catalogs, "v1")
    with pytest.raises(CatalogError) as caught:
        catalogs.rollback()
    assert caught.value.reason == "no_previous"
    load(catalogs, "v2")
    assert catalogs.rollback() == "v1"
    assert (catalogs.active, catalogs.previous) == ("v1", "v2")


def test_a_pinned_version_is_freed_only_after_its_last_pin() -> None:
    catalogs = store()
    load(catalogs, "v1")
    one = catalogs.resident_bytes()
    with catalogs.pin() as held:
        with catalogs.pin():
            load(catalogs, "v2")
            load(catalogs, "v3")
        assert catalogs.resident() == ("v3", "v2")
        assert catalogs.resident_bytes() == 3 * one
        assert held.live_total() == 1
    assert catalogs.resident_bytes() == 2 * one


def test_a_pin_goes_even_if_the_batch_fails() -> None:
    catalogs = store()
    load(catalogs, "v1")
    with pytest.raises(ZeroDivisionError), catalogs.pin():
        raise ZeroDivisionError
    load(catalogs, "v2")
    one = catalogs.resident_bytes() // 2
    load(catalogs, "v3")
    assert catalogs.resident_bytes() == 2 * one


def test_a_newer_staged_version_replaces_the_older() -> None:
    catalogs = store()
    for version in ("v1", "v2"):
        catalogs.stage(catalog_of([Item(1, (0,))], (4,), version=version))
    assert catalogs.resident() == ("v2",)
    with pytest.raises(CatalogError) as caught:
        catalogs.activate("v1")
    assert caught.value.reason == "not_resident"


def test_staging_a_resident_version_again_uploads_nothing() -> None:
    catalogs = store()
    load(catalogs, "v1")
    with catalogs.pin() as held:
        assert catalogs.stage(catalog_of([Item(1, (0,))], (4,))) is held
    assert catalogs.resident() == ("v1",)


def test_of_two_that_stage_a_version_at_once_one_resident_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogs, catalog = store(), catalog_of([Item(1, (0,))], (4,))
    build = ResidentCatalog.__init__

    def overtaken(self: ResidentCatalog, *arguments: Any) -> None:
        build(self, *arguments)
        monkeypatch.undo()
        load(catalogs, "v1")

    monkeypatch.setattr(ResidentCatalog, "__init__", overtaken)
    slower = catalogs.stage(catalog)
    with catalogs.pin() as held:
        assert slower is held
    load(catalogs, "v2")
    load(catalogs, "v3")
    assert catalogs.resident() == ("v3", "v2")


def test_discard_drops_all_but_the_active_version() -> None:
    catalogs = store()
    load(catalogs, "v1")
    load(catalogs, "v2")
    catalogs.discard("v1")
    assert catalogs.resident() == ("v2",)
    with pytest.raises(CatalogError) as caught:
        catalogs.discard("v2")
    assert caught.value.reason == "active"


@pytest.mark.parametrize(
    ("catalog", "free", "reason"),
    [
        (catalog_of([Item(1, (0,))], (4,), model="other"), PLENTY, "incompatible"),
        (catalog_of([Item(1, (0,))], (5,)), PLENTY, "incompatible"),
        (catalog_of([Item(1, (0, 0))], (4, 4)), PLENTY, "incompatible"),
        (catalog_of([Item(1, (0,))], (4,)), 8, "memory"),
    ],
)
def test_a_catalog_that_does_not_fit_is_refused(catalog: object, free: int, reason: str) -> None:
    catalogs = store(free)
    with pytest.raises(CatalogError) as caught:
        catalogs.stage(catalog)  # type: ignore[arg-type]  # parametrize loses the type
    assert caught.value.reason == reason
    assert catalogs.resident() == ()


def test_the_host_tells_its_free_memory() -> None:
    assert free_memory_of(CPU) > 1 << 20


def test_batches_never_see_a_freed_or_foreign_version_while_versions_swap() -> None:
    catalogs = store()
    load(catalogs, "v0")
    done = threading.Event()
    faults: list[object] = []

    def serve() -> None:
        while not done.is_set():
            with catalogs.pin() as held:
                if held.live_counts().tolist() != [0, 1] or not held.version.startswith("v"):
                    faults.append(held.version)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 100):
        load(catalogs, f"v{number}")
    done.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert catalogs.resident() == ("v99", "v98")
    with catalogs.pin() as held:
        arrays = (*held.code, *held.child_begin, *held.item_begin, held.live_counts(), held.live_counts())
        assert catalogs.resident_bytes() == 2 * (sum(tensor.nbytes for tensor in arrays) + ITEM_BYTES)


def test_a_kept_version_stays_through_swaps_until_it_is_released() -> None:
    catalogs = store()
    for version in ("v1", "v2"):
        load(catalogs, version)
    catalogs.keep("v1")
    load(catalogs, "v3")
    load(catalogs, "v4")
    assert catalogs.resident() == ("v4", "v3", "v1")
    with catalogs.pin("v1") as resident:
        assert resident.version == "v1"
        catalogs.release("v1")
        assert catalogs.resident() == ("v4", "v3")
    with pytest.raises(RequestError), catalogs.pin("v1"):
        pass


def test_keeping_a_staged_version_leaves_room_to_stage_another() -> None:
    catalogs = store()
    load(catalogs, "v1")
    for version in ("v2", "v3"):
        catalogs.stage(catalog_of([Item(1, (0,))], (4,), version=version))
        catalogs.keep(version)
    catalogs.stage(catalog_of([Item(1, (0,))], (4,), version="v4"))
    assert catalogs.resident() == ("v1", "v4", "v2", "v3")
    catalogs.discard("v2")
    assert catalogs.resident() == ("v1", "v4", "v3")
    with pytest.raises(CatalogError) as caught:
        catalogs.keep("v2")
    assert caught.value.reason == "not_resident"
