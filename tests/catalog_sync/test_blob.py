import struct
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog_sync import blob
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.catalog.delta import Delta
from engine.errors import CatalogError
from tests.engine.catalogs import Item, catalog_of, item_tables

HEADER_AT = 20


def rich_catalog(strings: bool = False) -> Catalog:
    """Every kind of column, two levels, two items on one leaf."""
    return build_catalog(
        version="",
        model="m",
        sizes=(4, 4),
        ids=["b", "a", "c", "d"] if strings else np.array([2, 1, 3, 4]),
        sids=np.array([[1, 2], [1, 2], [0, 3], [0, 1]], dtype=np.int32),
        recallable=np.array([True, False, True, True]),
        rank=np.array([1.0, 0.5, np.inf, 0.0]),
        tags={"x": np.array([True, False, True, False]), "y": np.array([False, True, False, True])},
        fields={
            "title": pa.array(["B", None, "C", "ä"]),
            "kinds": pa.array([["k"], None, [], ["l", "m"]]),
            "year": pa.array([1, None, 3, 4]),
            "price": pa.array([1.5, 2.5, None, 4.5]),
            "new": pa.array([True, None, False, True]),
        },
    )


def few_tags() -> Catalog:
    """Two tags that so few items hold that they have no bitmap."""
    holders = {"x": np.arange(100) % 50 == 1, "y": np.arange(100) == 7}
    return build_catalog(
        version="", model="m", sizes=(4,), ids=np.arange(100), sids=np.zeros((100, 1), np.int32), tags=holders
    )


def assert_same(left: Catalog, right: Catalog) -> None:
    assert (left.model, left.sizes) == (right.model, right.sizes)
    assert np.array_equal(left.sids, right.sids)
    assert left.ranks().tolist() == right.ranks().tolist()
    assert list(left.ids) == list(right.ids)
    assert np.array_equal(left.recallable, right.recallable)
    assert {k: v.tolist() for k, v in left.tags.items()} == {k: v.tolist() for k, v in right.tags.items()}
    assert {k: v.to_pylist() for k, v in left.fields.items()} == {k: v.to_pylist() for k, v in right.fields.items()}


def sections(data: bytes | bytearray) -> dict[str, tuple[str, int, int]]:
    """Name to (dtype, count, byte offset in the blob)."""
    (length,) = struct.unpack_from("<Q", data, 12)
    header = msgpack.unpackb(data[HEADER_AT : HEADER_AT + length])
    begin = -(-(HEADER_AT + length) // 64) * 64
    return {name: (dtype, count, begin + offset) for name, dtype, count, offset in header["sections"]}


def with_header(data: bytes, **changes: object) -> bytes:
    """The same arrays under another header."""
    (length,) = struct.unpack_from("<Q", data, 12)
    body = data[-(-(HEADER_AT + length) // 64) * 64 :]
    header = msgpack.packb(msgpack.unpackb(data[HEADER_AT : HEADER_AT + length]) | changes)
    front = data[:12] + struct.pack("<Q", len(header)) + header
    return bytes(front.ljust(-(-len(front) // 64) * 64, b"\0") + body)


def refused(data: bytes | bytearray) -> str:
    with pytest.raises(CatalogError) as caught:
        blob.decode(data)
    return caught.value.reason


@settings(deadline=None)
@given(item_tables())
def test_a_catalog_survives_the_round_trip(table: tuple[tuple[int, ...], list[Item]]) -> None:
    sizes, items = table
    catalog = catalog_of(items, sizes)
    data = blob.encode(catalog)
    assert_same(blob.decode(data), catalog)
    assert blob.encode(blob.decode(data)) == data


@pytest.mark.parametrize("strings", [False, True])
def test_every_kind_of_column_survives_nulls_included(strings: bool) -> None:
    catalog = rich_catalog(strings)
    assert_same(blob.decode(blob.encode(catalog)), catalog)


def test_the_version_is_the_content_whatever_the_order_of_the_input() -> None:
    items = [Item(i, (i % 3,), tags=frozenset("ab"[: i % 2])) for i in range(9)]
    forwards, backwards = blob.encode(catalog_of(items, (3,))), blob.encode(catalog_of(items[::-1], (3,)))
    assert forwards == backwards
    assert blob.decode(forwards).version == blob.version_of(forwards)
    other = blob.encode(catalog_of([*items[:-1], Item(8, (2,), recallable=False)], (3,)))
    assert blob.version_of(other) != blob.version_of(forwards)


def test_what_lies_under_a_null_does_not_change_the_version() -> None:
    def with_field(values: pa.Array) -> bytearray:
        sids = np.zeros((2, 1), np.int32)
        return blob.encode(
            build_catalog(version="", model="m", sizes=(1,), ids=np.array([1, 2]), sids=sids, fields={"n": values})
        )

    masked = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(struct.pack("<qq", 5, 99))])
    assert with_field(masked) == with_field(pa.array([5, None]))


def test_arrays_are_read_only_views_of_the_bytes() -> None:
    data = blob.encode(rich_catalog())
    catalog = blob.decode(data)
    whole = np.frombuffer(data, np.uint8)
    arrays = (catalog.sids, catalog.ids, catalog.ranks(), catalog.tags.bits)
    assert all(np.shares_memory(array, whole) and not array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("sids", 0, 1),
        ("sids", 0, 4),
        ("sids", 3, 0),
        ("sids", 7, 1),
        ("sids", 7, 4),
        ("ids", 0, 1),
        ("rank", 0, np.nan),
        ("rank", 2, 2.0),
        ("tags/begin", 1, -1),
        ("tags/begin", 2, 3),
        ("tags/begin", 1, 2**62),
        ("tags/dense", 0, 1),
        ("tags/dense", 0, -1),
        ("tags/dense", 1, 2),
        ("tags/bits", 0, 0x1A),
        ("field/3/offsets", 1, 9),
        ("field/3/offsets", 1, -(2**31)),
        ("field/3/text", 0, 0xFF),
        ("field/0/lists", 1, -1),
        ("field/0/items/offsets", 1, 7),
    ],
)
def test_a_wrong_value_in_any_array_is_refused(name: str, index: int, value: int) -> None:
    data = blob.encode(rich_catalog())
    dtype, count, offset = sections(data)[name]
    array = np.frombuffer(data, dtype, count, offset)
    assert array[index] != value
    array[index] = value
    assert refused(data) == "structure"


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("tags/begin", 1, 3),
        ("tags/begin", 1, 0),
        ("tags/items", 0, 51),
        ("tags/items", 0, -1),
        ("tags/items", 2, 100),
    ],
)
def test_a_wrong_value_in_a_list_of_items_is_refused(name: str, index: int, value: int) -> None:
    data = blob.encode(few_tags())
    assert_same(blob.decode(data), few_tags())
    dtype, count, offset = sections(data)[name]
    array = np.frombuffer(data, dtype, count, offset)
    assert array[index] != value
    array[index] = value
    assert refused(data) == "structure"


def test_begins_whose_differences_overflow_are_refused() -> None:
    """Every step of these is positive modulo 2^64."""
    data = blob.encode(few_tags())
    dtype, count, offset = sections(data)["tags/begin"]
    np.frombuffer(data, dtype, count, offset)[1] = -(2**63)
    assert refused(data) == "structure"


def test_items_of_one_sid_that_stand_in_another_order_are_refused() -> None:
    data = blob.encode(few_tags())
    dtype, count, offset = sections(data)["ids"]
    np.frombuffer(data, dtype, count, offset)[3] = 1000
    assert refused(data) == "structure"


def test_strings_ids_that_repeat_are_refused() -> None:
    data = blob.encode(rich_catalog(strings=True))
    _, _, offset = sections(data)["ids/text"]
    data[offset] = data[offset + 1]
    assert refused(data) == "structure"


def test_what_is_not_a_catalog_or_of_another_format_is_refused() -> None:
    data = bytes(blob.encode(rich_catalog()))
    assert refused(b"") == refused(data[:19]) == refused(b"PAR1" + data[4:]) == "format"
    assert refused(data[:8] + b"\x01" + data[9:]) == "format"


@pytest.mark.parametrize(
    "changes",
    [
        {"items": 0},
        {"items": 5},
        {"items": 2**62},
        {"sizes": [4]},
        {"sizes": [4, 4, 4]},
        {"sizes": [4, 3]},
        {"sizes": [4, 2**30]},
        {"ids": "string"},
        {"ids": "float"},
        {"tags": ["x"]},
        {"tags": ["y", "x"]},
        {"fields": []},
        {"fields": [["n", "int64", False]] * 2},
        {"fields": [["n", "tensor", False]]},
        {"sections": []},
        {"sections": [["ids", "<i8", 2**61, 0]]},
        {"sections": [["ids", "<i8", -1, 0]]},
        {"sections": [["ids", "|O", 4, 0]]},
        {"surprise": 1},
        {"model": None},
    ],
)
def test_a_header_that_lies_is_refused(changes: dict[str, object]) -> None:
    data = bytes(blob.encode(rich_catalog()))
    assert_same(blob.decode(with_header(data)), rich_catalog())
    assert refused(with_header(data, **changes)) == "structure"


def test_hostile_headers_are_refused_without_using_memory() -> None:
    front = struct.pack("<8sI", blob.MAGIC, blob.FORMAT)
    for header in (b"", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000 + b"\xc0", b"\xdb\x7f\xff\xff\xff", b"\xc1"):
        body = front + struct.pack("<Q", len(header)) + header
        assert refused(body.ljust(-(-len(body) // 64) * 64, b"\0")) == "structure"
    assert refused(front + struct.pack("<Q", 2**63)) == "structure"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_damage_is_refused_or_leaves_a_sound_catalog(data: st.DataObject) -> None:
    damaged = blob.encode(rich_catalog(strings=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        catalog = blob.decode(damaged)
    except CatalogError:
        return
    assert_same(blob.decode(blob.encode(catalog)), catalog)


def some_delta(strings: bool = False) -> Delta:
    withdrawn = pa.array(["x", "y"]) if strings else np.array([7, 8])
    return Delta("", "parent", rich_catalog(strings), withdrawn)


@pytest.mark.parametrize("strings", [False, True])
def test_a_delta_survives_the_round_trip(strings: bool) -> None:
    found = blob.decode_version(blob.encode(some_delta(strings)))
    assert isinstance(found, Delta)
    assert_same(found.upserts, rich_catalog(strings))
    assert (found.parent, list(found.withdrawn)) == ("parent", list(some_delta(strings).withdrawn))


def test_a_delta_that_names_an_item_twice_is_refused() -> None:
    data = blob.encode(some_delta())
    dtype, count, offset = sections(data)["withdrawn"]
    for item_id in (8, 1):  # withdrawn twice; withdrawn and brought
        np.frombuffer(data, dtype, count, offset)[0] = item_id
        with pytest.raises(CatalogError) as caught:
            blob.decode_version(data)
        assert caught.value.reason == "structure"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_damage_of_a_delta_is_refused_or_leaves_a_sound_one(data: st.DataObject) -> None:
    damaged = blob.encode(some_delta(strings=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = blob.decode_version(damaged)
    except CatalogError:
        return
    assert isinstance(blob.decode_version(blob.encode(found)), type(found))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.rsc"
    blob.write_file(path, b"old")

    def disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        blob.write_file(path, b"new")
    assert (blob.read_file(path), [p.name for p in tmp_path.iterdir()]) == (b"old", ["c.rsc"])
    with pytest.raises(CatalogError) as caught:
        blob.read_file(tmp_path / "absent")
    assert caught.value.reason == "source"
