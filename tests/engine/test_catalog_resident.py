import time

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.catalog.lookup import HashIndex, IdIndex
from engine.catalog.resident import ResidentCatalog
from engine.catalog.texts import all_distinct
from engine.errors import RequestError
from engine.request import NO_ITEMS, TagFilter
from tests.engine.catalogs import Item, catalog_of, item_tables, leaf_order, tag_filters

Table = tuple[tuple[int, ...], list[Item]]
CPU = torch.device("cpu")


def resident(items: list[Item], sizes: tuple[int, ...], filters: int = 16) -> ResidentCatalog:
    return ResidentCatalog(catalog_of(items, sizes), CPU, filters)


@given(item_tables(), tag_filters())
def test_live_counts_are_those_of_the_items_that_pass_one_by_one(table: Table, tags: TagFilter) -> None:
    sizes, items = table
    catalog = resident(items, sizes)
    live = [item.passes(tags) for item in leaf_order(items)]
    assert catalog.live_counts(tags).tolist() == [0, *np.cumsum(live).tolist()]
    assert catalog.live_total(tags) == sum(live)
    assert catalog.live_counts(tags).dtype == torch.int32


@given(item_tables())
def test_ids_resolve_to_the_items_and_codes_they_were_built_with(table: Table) -> None:
    sizes, items = table
    catalog = resident(items, sizes)
    ids = [item.id for item in items]
    asked = np.array(ids, dtype=np.int64) if isinstance(ids[0], int) else [str(i) for i in ids]
    found = catalog.lookup(asked)
    assert [leaf_order(items)[i].id for i in found] == ids
    assert catalog.codes_of(found).tolist() == [list(item.sid) for item in items]
    assert catalog.codes_of(found).dtype == np.int32
    assert list(catalog.ids_of(found)) == ids
    assert catalog.fields_of(["title"], found) == {"title": [f"title of {i}" for i in ids]}


def test_two_items_of_one_leaf_are_judged_each_by_their_own_tags() -> None:
    catalog = resident([Item(1, (0,), tags=frozenset("a")), Item(2, (0,), tags=frozenset("b"))], (1,))
    assert catalog.live_total(TagFilter(all=("a", "b"))) == 0
    assert catalog.live_counts(TagFilter(any=("a", "b"), none=("a",))).tolist() == [0, 0, 1]
    assert catalog.live_total(TagFilter(all=("a", "absent"))) == 0
    assert catalog.live_total(TagFilter(any=("absent",))) == 0
    assert catalog.live_total(TagFilter(none=("absent",))) == 2


def test_an_item_out_of_recall_keeps_its_sid() -> None:
    catalog = resident([Item(1, (0,), recallable=False), Item(2, (1,))], (2,))
    assert catalog.live_counts().tolist() == [0, 0, 1]
    assert catalog.codes_of(catalog.lookup(np.array([1]))).tolist() == [[0]]


def test_filters_are_cached_by_meaning_and_the_least_recently_used_goes() -> None:
    catalog = resident([Item(1, (0,), tags=frozenset("ab"))], (1,), filters=2)
    first = catalog.live_counts(TagFilter(any=("a", "b")))
    assert catalog.live_counts(TagFilter(any=("b", "a", "a"))) is first
    catalog.live_counts(TagFilter(all=("a",)))
    assert catalog.live_counts(TagFilter(any=("a", "b"))) is first
    catalog.live_counts(TagFilter(all=("b",)))
    catalog.live_counts(TagFilter(none=("b",)))
    assert catalog.live_counts(TagFilter(any=("a", "b"))) is not first
    assert catalog.live_counts(TagFilter()) is catalog.live_counts(None)


def test_unknown_ids_are_minus_one() -> None:
    numbers = resident([Item(7, (0,)), Item(-7, (0,))], (1,))
    assert numbers.lookup(np.array([8, 7, 0, -7])).tolist() == [-1, 1, -1, 0]
    words = resident([Item("x", (0,)), Item("", (0,))], (1,))
    assert words.lookup(["y", "x", "", "é"]).tolist() == [-1, 1, 0, -1]


@pytest.mark.parametrize(
    ("items", "ids"),
    [([Item(1, (0,))], ["1"]), ([Item("1", (0,))], np.array([1])), ([Item(1, (0,))], np.array([1], np.uint64))],
)
def test_the_wrong_kind_of_id_is_a_bad_request_unless_there_is_none(items: list[Item], ids: list[str]) -> None:
    catalog = resident(items, (1,))
    with pytest.raises(RequestError, match="item ids are") as caught:
        catalog.lookup(ids)
    assert caught.value.code == "bad_request"
    assert len(catalog.lookup(NO_ITEMS)) == len(catalog.lookup([])) == 0


def test_text_that_is_not_unicode_is_a_bad_request() -> None:
    with pytest.raises(RequestError, match="not valid text"):
        resident([Item("1", (0,))], (1,)).lookup(["\ud800"])


def test_an_unknown_field_is_a_bad_request() -> None:
    with pytest.raises(RequestError, match="no field 'year'") as caught:
        resident([Item(1, (0,))], (1,)).fields_of(["title", "year"], np.array([0]))
    assert caught.value.code == "bad_request"


def test_the_index_finds_every_key_of_a_large_set_and_no_other() -> None:
    keys = np.random.default_rng(0).permutation(200_000)[:100_000].astype(np.int64)
    found = HashIndex(keys).find(np.arange(200_000))
    assert np.array_equal(np.sort(found[found >= 0]), np.arange(100_000))
    assert np.array_equal(keys[found[found >= 0]], np.flatnonzero(found >= 0))


def test_an_empty_index_finds_nothing() -> None:
    assert HashIndex(np.empty(0, dtype=np.int64)).find(np.arange(3)).tolist() == [-1, -1, -1]


def test_ids_cannot_be_chosen_to_share_a_bucket() -> None:
    inverse = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))  # of a multiplier that is widely used
    mixed = np.arange(200_000, dtype=np.uint64) * inverse
    keys = ((mixed ^ (mixed >> np.uint64(32))) * inverse).view(np.int64)
    index = HashIndex(keys)
    begin = time.perf_counter()
    assert index.find(keys[-100:]).tolist() == list(range(199_900, 200_000))
    assert time.perf_counter() - begin < 2  # 0.2 ms; all in one bucket, 10 s


def test_strings_of_equal_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hash_texts", "hash_column"):
        monkeypatch.setattr(f"engine.catalog.lookup.{name}", lambda texts, *_: np.full(len(texts), 7))
    index = IdIndex(pa.array(["a", "b", "c"]))
    assert index.find(["c", "a", "x", "b"]).tolist() == [2, 0, -1, 1]


@pytest.mark.parametrize("hashes", [None, [7, 7, 7, 1]], ids=["", "of equal hash"])
def test_strings_are_distinct_unless_two_are_equal(monkeypatch: pytest.MonkeyPatch, hashes: list[int] | None) -> None:
    if hashes is not None:
        monkeypatch.setattr("engine.catalog.texts.hash_column", lambda texts: np.array(hashes[: len(texts)]))
    assert all_distinct(pa.array(["a", "b", "c", "dd"]))
    assert all_distinct(pa.array(["x", "b", "c", "dd"])[1:])
    assert not all_distinct(pa.array(["a", "b", "a", "dd"]))
    assert all_distinct(pa.array([], pa.string()))


@settings(deadline=None)
@given(st.lists(st.text(max_size=200), min_size=1, max_size=40, unique=True), st.lists(st.text(max_size=200)))
def test_texts_of_every_length_are_found_and_no_others(held: list[str], others: list[str]) -> None:
    index = IdIndex(pa.array(held, pa.string()))
    asked = [*others, *held, *(text + "x" for text in held), *(text[:-1] for text in held)]
    expected = [held.index(text) if text in held else -1 for text in asked]
    assert index.find(asked).tolist() == expected


@settings(deadline=None)
@given(st.integers(0, 20), st.data())
def test_texts_of_one_length_are_found_and_no_others(width: int, data: st.DataObject) -> None:
    texts = st.text("ab\0", min_size=width, max_size=width)
    held = data.draw(st.lists(texts, min_size=1, max_size=30, unique=True))
    index = IdIndex(pa.array(["", *held], pa.string())[1:])
    asked = [*data.draw(st.lists(texts)), *held]
    for those in (asked, [text for text in asked if "\0" not in text], [*asked, "c" * (width + 1)]):
        assert index.find(those).tolist() == [held.index(text) if text in held else -1 for text in those]


def test_texts_in_step_that_reach_the_end_of_their_memory_are_read_as_far_as_they_go() -> None:
    held = ["abc", "abd", "abe"]
    column = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.arange(0, 12, 3, dtype=np.int32)), pa.py_buffer("".join(held).encode())]
    )
    assert IdIndex(column).find(["abe", "abd", "ab", "abc", "abf"]).tolist() == [2, 1, -1, 0, -1]
