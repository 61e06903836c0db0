from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from engine.catalog.build import build_catalog
from engine.errors import CatalogError
from tests.engine.catalogs import Item, catalog_of, item_tables, leaf_order

Table = tuple[tuple[int, ...], list[Item]]


@given(item_tables())
def test_nodes_are_the_sorted_distinct_prefixes_and_their_ranges_are_exact(table: Table) -> None:
    sizes, items = table
    trie = catalog_of(items, sizes).trie
    ordered = leaf_order(items)
    prefixes = [sorted({item.sid[:level] for item in items}) for level in range(len(sizes) + 1)]
    for level, nodes in enumerate(prefixes):
        assert trie.item_begin[level].tolist() == [
            next(i for i, item in enumerate(ordered) if item.sid[:level] == node) for node in nodes
        ] + [len(items)]
        if level < len(sizes):
            children = prefixes[level + 1]
            assert trie.code[level].tolist() == [child[-1] for child in children]
            for node, (begin, end) in zip(nodes, pairwise(trie.child_begin[level].tolist()), strict=True):
                assert children[begin:end] == [child for child in children if child[:-1] == node]
    assert all(a.dtype == np.int32 for arrays in (trie.code, trie.child_begin, trie.item_begin) for a in arrays)


@given(item_tables())
def test_items_stand_in_leaf_order_by_rank_then_id_with_all_their_columns(table: Table) -> None:
    sizes, items = table
    catalog = catalog_of(items, sizes)
    ordered = leaf_order(items)
    ids = catalog.ids.tolist() if isinstance(catalog.ids, np.ndarray) else catalog.ids.to_pylist()
    assert ids == [item.id for item in ordered]
    assert catalog.recallable.tolist() == [item.recallable for item in ordered]
    assert catalog.fields["title"].to_pylist() == [f"title of {item.id}" for item in ordered]
    assert {tag: bits.tolist() for tag, bits in catalog.tags.items()} == {
        tag: [tag in item.tags for item in ordered] for tag in sorted({tag for item in items for tag in item.tags})
    }


@pytest.mark.parametrize("sizes", [(2, 2), (1 << 20,) * 2, (1 << 20,) * 8])
def test_items_of_one_sid_without_rank_stand_by_id(sizes: tuple[int, ...]) -> None:
    sids = np.zeros((4, len(sizes)), np.int32)
    sids[:, -2:] = [[1, 0], [0, 1], [1, 0], [0, 1]]
    catalog = build_catalog(version="v", model="m", sizes=sizes, ids=np.array([7, 3, 5, 9]), sids=sids)
    assert catalog.ids.tolist() == [3, 9, 5, 7]
    assert (catalog.trie.levels, catalog.trie.leaves, catalog.trie.items) == (len(sizes), 2, 4)
    assert (catalog.items, catalog.leaves, catalog.leaf_sizes().tolist()) == (4, 2, [2, 2])


@pytest.mark.parametrize(
    ("sizes", "sids", "reason", "text"),
    [
        ((4, 4), np.empty((0, 2), np.int32), "empty", "0 items"),
        ((4, 4), np.array([[0, 0], [0, 4]], np.int32), "range", "row 1: code 4 at level 1"),
        ((4, 4), np.array([[0, -1]], np.int32), "range", "row 0: code -1 at level 1"),
        ((4, 4), np.array([[0, 0, 0]], np.int32), "structure", "2 levels"),
        ((), np.empty((1, 0), np.int32), "structure", "1 to 8 levels"),
        ((1,) * 9, np.zeros((1, 9), np.int32), "structure", "1 to 8 levels"),
        (((1 << 20) + 1,), np.zeros((1, 1), np.int32), "structure", "level 0: size"),
    ],
)
def test_bad_sids_are_refused(sizes: tuple[int, ...], sids: np.ndarray, reason: str, text: str) -> None:
    with pytest.raises(CatalogError, match=text) as caught:
        build_catalog(version="v", model="m", sizes=sizes, ids=np.arange(len(sids)), sids=sids)
    assert caught.value.reason == reason


@pytest.mark.parametrize("ids", [np.array([5, 6, 7, 6, 5]), ["five", "six", "seven", "six", "five"]])
def test_a_duplicate_id_names_both_places(ids: np.ndarray | list[str]) -> None:
    with pytest.raises(CatalogError, match=r"row 3: item id (6|six) is already on row 1") as caught:
        build_catalog(version="v", model="m", sizes=(9,), ids=ids, sids=np.arange(5, dtype=np.int32).reshape(5, 1))
    assert caught.value.reason == "duplicate"


def test_a_rank_that_is_no_number_is_refused() -> None:
    with pytest.raises(CatalogError, match="row 1: rank") as caught:
        catalog_of([Item(1, (0,)), Item(2, (0,), rank=float("nan"))], (1,))
    assert caught.value.reason == "rank"


def test_ids_of_another_kind_are_refused() -> None:
    with pytest.raises(CatalogError, match="float64"):
        build_catalog(version="v", model="m", sizes=(1,), ids=np.array([1.0]), sids=np.zeros((1, 1), np.int32))
