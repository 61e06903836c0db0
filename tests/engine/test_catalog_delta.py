import numpy as np
import pytest
import torch
from hypothesis import given, settings

from catalog_sync import blob
from engine.catalog.resident import ResidentCatalog
from engine.errors import CatalogError
from engine.request import TagFilter
from tests.engine.catalogs import Item, catalog_of, tag_filters
from tests.engine.deltas import Change, chains, delta_of, ids_like

CPU = torch.device("cpu")
Chain = tuple[tuple[int, ...], list[Item], list[Change]]


def follow(chain: Chain, device: torch.device = CPU) -> tuple[ResidentCatalog, list[Item]]:
    """The version at the end of a chain, and the table that it stands for."""
    sizes, items, changes = chain
    base = catalog_of(items, sizes, version="v0")
    resident = ResidentCatalog(base, device)
    for number, change in enumerate(changes, start=1):
        resident = resident.changed_by(delta_of(change, base, resident.version, f"v{number}"))
        items = change.applied(items)
    return resident, items


def same_tensors(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(left, right, strict=True))


@settings(deadline=None)
@given(chains(), tag_filters())
def test_a_base_and_its_deltas_are_the_base_built_anew(chain: Chain, tags: TagFilter) -> None:
    resident, items = follow(chain)
    rebuilt = ResidentCatalog(catalog_of(items, chain[0]), CPU)
    assert same_tensors(resident.code, rebuilt.code)
    assert same_tensors(resident.child_begin, rebuilt.child_begin)
    assert same_tensors(resident.item_begin, rebuilt.item_begin)
    assert torch.equal(resident.live_counts(), rebuilt.live_counts())
    assert torch.equal(resident.live_counts(tags), rebuilt.live_counts(tags))
    assert resident.live_total(tags) == rebuilt.live_total(tags)
    every = np.arange(rebuilt.items)
    assert resident.items == rebuilt.items
    assert np.array_equal(resident.codes_of(every), rebuilt.codes_of(every))
    assert list(resident.ids_of(every)) == list(rebuilt.ids_of(every))
    assert resident.fields_of(["title"], every) == rebuilt.fields_of(["title"], every)
    for wanted in (tags, None):
        assert np.array_equal(resident.passes(every, wanted), rebuilt.passes(every, wanted))
    asked = ids_like(catalog_of(items, chain[0]).ids, [item.id for item in items])
    ids = asked if isinstance(asked, np.ndarray) else asked.to_pylist()
    assert np.array_equal(resident.lookup(ids), rebuilt.lookup(ids))


@settings(deadline=None)
@given(chains())
def test_a_chain_merged_on_the_host_has_the_bytes_of_a_catalog_built_anew(chain: Chain) -> None:
    resident, items = follow(chain)
    assert blob.encode(resident.merged()) == blob.encode(catalog_of(items, chain[0]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@settings(deadline=None)
@given(chains(), tag_filters())
def test_a_base_and_its_deltas_are_on_the_device_what_they_are_on_the_host(chain: Chain, tags: TagFilter) -> None:
    expected, _ = follow(chain)
    resident, _ = follow(chain, torch.device("cuda"))
    for name in ("code", "child_begin", "item_begin"):
        assert all(
            torch.equal(a, b.cpu()) for a, b in zip(getattr(expected, name), getattr(resident, name), strict=True)
        )
    assert torch.equal(expected.live_counts(tags), resident.live_counts(tags).cpu())
    assert torch.equal(expected.live_counts(), resident.live_counts().cpu())


@settings(deadline=None)
@given(chains(), tag_filters())
def test_deltas_folded_into_one_change_what_they_change_one_after_the_other(chain: Chain, tags: TagFilter) -> None:
    expected, items = follow(chain)
    sizes, before, changes = chain
    base = catalog_of(before, sizes, version="v0")
    deltas = [delta_of(change, base, f"v{n}", f"v{n + 1}") for n, change in enumerate(changes)]
    resident = ResidentCatalog(base, CPU)
    resident = resident.changed_by(*deltas) if deltas else resident
    assert (resident.version, resident.deltas) == (expected.version, expected.deltas)
    assert blob.encode(resident.merged()) == blob.encode(expected.merged()) == blob.encode(catalog_of(items, chain[0]))
    assert torch.equal(expected.live_counts(tags), resident.live_counts(tags))


def test_a_withdrawn_item_keeps_its_sid_and_comes_back_when_added_again() -> None:
    items = [Item(1, (0,)), Item(2, (1,))]
    gone, back = Change((), (2,)), Change((Item(2, (3,)),), ())
    resident, _ = follow(((4,), items, [gone]))
    assert resident.live_counts().tolist() == [0, 1, 1]
    assert resident.codes_of(resident.lookup(np.array([2]))).tolist() == [[1]]
    resident, _ = follow(((4,), items, [gone, back]))
    assert resident.live_counts().tolist() == [0, 1, 2]
    assert resident.codes_of(resident.lookup(np.array([2]))).tolist() == [[3]]


def test_a_version_that_only_withdraws_shares_its_parents_trie() -> None:
    items = [Item(1, (0,)), Item(2, (1,))]
    base = catalog_of(items, (4,), version="v0")
    parent = ResidentCatalog(base, CPU)
    child = parent.changed_by(delta_of(Change((), (1,)), base, "v0", "v1"))
    assert all(a is b for a, b in zip(child.code, parent.code, strict=True))
    assert (parent.live_total(), child.live_total()) == (2, 1)


def test_a_delta_of_another_version_is_refused() -> None:
    base = catalog_of([Item(1, (0,))], (4,), version="v0")
    with pytest.raises(CatalogError) as caught:
        ResidentCatalog(base, CPU).changed_by(delta_of(Change((), (1,)), base, "v9", "v1"))
    assert caught.value.reason == "parent"


@pytest.mark.parametrize(
    "other",
    [
        catalog_of([Item("1", (0,))], (4,)),
        catalog_of([Item(1, (0,))], (5,)),
        catalog_of([Item(1, (0,))], (4,), model="n"),
    ],
)
def test_a_delta_of_items_of_another_kind_is_refused(other: object) -> None:
    base = catalog_of([Item(1, (0,))], (4,), version="v0")
    delta = delta_of(Change((Item(2, (1,)),), ()), base, "v0", "v1")
    from dataclasses import replace

    with pytest.raises(CatalogError) as caught:
        ResidentCatalog(base, CPU).changed_by(replace(delta, upserts=other))  # type: ignore[arg-type]
    assert caught.value.reason == "incompatible"
