import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalog_sync import blob
from catalog_sync.change_feed import ChangeFeed, ChangeRecord
from catalog_sync.changes import load_ids, load_upserts, make_delta, parse_ids
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Manifest, Pointer
from catalog_sync.rebase_helper import RebaseHelper
from catalog_sync.source import load_source
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Ids
from engine.catalog.delta import Delta
from engine.errors import CatalogError
from tests.catalog_sync.redis_support import MODEL, SIZES, Fleet
from tests.catalog_sync.test_deltas import served
from tests.catalog_sync.test_watcher import until_active


def base(ids: Ids | list[str] | None = None) -> tuple[Manifest, bytearray]:
    """Items 1 and 2 (or these), with a title and a price."""
    catalog = build_catalog(
        version="",
        model=MODEL,
        sizes=SIZES,
        ids=np.array([1, 2]) if ids is None else ids,
        sids=np.array([[1, 1], [2, 2]], np.int32),
        fields={"title": pa.array(["a", "b"]), "price": pa.array([1.0, None])},
    )
    data = blob.encode(catalog)
    return Manifest.of(blob.decode(data), data), data


PARENT, _ = base()
TEXT_PARENT, _ = base(["x", "y"])


def lines(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def row(item_id: int | str, **columns: object) -> dict[str, object]:
    return {"item_id": item_id, "sid": [3, 3], **columns}


def test_added_items_get_the_fields_of_the_version_that_they_come_to(tmp_path: Path) -> None:
    items = load_upserts(lines(tmp_path / "add.jsonl", row(3, price=7), row(4, price=None)), PARENT)
    assert items.fields["price"].to_pylist() == [7.0, None]
    assert items.fields["title"].to_pylist() == [None, None]
    assert {name: column.type for name, column in items.fields.items()} == {"title": pa.string(), "price": pa.float64()}


@pytest.mark.parametrize(
    ("rows", "reason", "text"),
    [
        ([row(3), row(4, sid=[1])], "structure", "line 2: sid has 1 codes"),
        ([row(3), row(4, sid=[1, 64])], "range", "line 2: code 64"),
        ([row(3), "", row(3)], "duplicate", "line 3: item id 3 is already on line 1"),
        ([row(3), {"item_id": 4}], "structure", "line 2: sid"),
        ([row(3), "{"], "source", "line 2"),
        ([row("x")], "incompatible", "item ids"),
        ([row(3, price="much")], "incompatible", "'price' is string, not float64"),
        ([row(3, color="red")], "incompatible", "no field 'color'"),
        ([""], "empty", "the file is empty"),
    ],
)
def test_items_that_cannot_be_added_are_named_by_file_and_line(
    tmp_path: Path, rows: list[object], reason: str, text: str
) -> None:
    path = lines(tmp_path / "add.jsonl", *rows)
    with pytest.raises(CatalogError, match=text) as caught:
        load_upserts(path, PARENT)
    assert caught.value.reason == reason
    assert str(path) in caught.value.message


def test_ids_come_from_lines_from_parquet_and_from_words(tmp_path: Path) -> None:
    table = tmp_path / "gone.parquet"
    pq.write_table(pa.table({"item_id": [1, 2], "why": ["a", "b"]}), table)
    assert list(load_ids(table)) == [1, 2]
    assert list(load_ids(lines(tmp_path / "gone.jsonl", {"item_id": 5, "why": 1}, {"item_id": -6}))) == [5, -6]
    texts = load_ids(lines(tmp_path / "texts.jsonl", {"item_id": "x"}))
    assert (texts.to_pylist(), parse_ids(["1"], TEXT_PARENT).to_pylist()) == (["x"], ["1"])  # type: ignore[union-attr]
    assert list(parse_ids(["-3", "4"], PARENT)) == [-3, 4]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"item_id": 1}, {"item_id": 1.5}], "line 2"),
        ([{"item_id": 1}, {"item_id": "x"}], "line 2: item_id is of another kind"),
        ([{"item_id": 1}, "[]"], "line 2"),
        ([{"item_id": 1}, {"id": 2}], "line 2.*item_id"),
    ],
)
def test_lines_without_an_id_are_named(tmp_path: Path, rows: list[object], text: str) -> None:
    with pytest.raises(CatalogError, match=text) as caught:
        load_ids(lines(tmp_path / "gone.jsonl", *rows))
    assert caught.value.reason == "source"


def test_other_faults_of_id_tables_and_words_are_named(tmp_path: Path) -> None:
    table = tmp_path / "gone.parquet"
    pq.write_table(pa.table({"id": [1]}), table)
    with pytest.raises(CatalogError, match="item_id"):
        load_ids(table)
    with pytest.raises(CatalogError, match="nowhere"):
        load_ids(tmp_path / "nowhere.jsonl")
    with pytest.raises(CatalogError, match="int64"):
        parse_ids(["1", "x"], PARENT)
    with pytest.raises(CatalogError, match="int64"):
        parse_ids([str(2**63)], PARENT)
    for word in ("1_0", " 1", "+1", "\u0663", "1" * 5000):  # Python would read most of them as other numbers
        with pytest.raises(CatalogError, match="is no int64"):
            parse_ids([word], PARENT)


def test_an_item_both_added_and_withdrawn_or_withdrawn_twice_is_refused(tmp_path: Path) -> None:
    items = load_upserts(lines(tmp_path / "add.jsonl", row(3)), PARENT)
    for upserts, gone in ((items, [3]), (None, [1, 1])):
        with pytest.raises(CatalogError, match=r"item id \d") as caught:
            make_delta(PARENT, upserts, [np.array(gone, np.int64)])
        assert caught.value.reason == "duplicate"
    with pytest.raises(CatalogError) as caught:
        make_delta(PARENT, None, [])
    assert caught.value.reason == "empty"
    with pytest.raises(CatalogError, match="int64"):
        make_delta(PARENT, None, [pa.array(["x"])])


def test_a_delta_survives_the_round_trip_and_its_name_is_its_content(tmp_path: Path) -> None:
    items = load_upserts(lines(tmp_path / "add.jsonl", row(3, tags=["t"], rank=2), row(4)), PARENT)
    delta, data = make_delta(PARENT, items, [np.array([2, 1])])
    found = blob.decode_version(data)
    assert isinstance(found, Delta)
    assert (found.version, found.parent, list(found.withdrawn)) == (delta.version, PARENT.version, [1, 2])
    assert list(found.upserts.ids) == [3, 4]
    assert blob.encode(found) == data == make_delta(PARENT, items, [np.array([1]), np.array([2])])[1]
    with pytest.raises(CatalogError, match="this is a delta"):
        blob.decode(data)


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server)
    running.publisher.publish(*base())
    yield running
    running.close()


def record(value: Any, offset: int = 0, key: bytes | None = None, partition: int = 0) -> ChangeRecord:
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return ChangeRecord(partition, offset, key, raw)


def feed_of(fleet: Fleet) -> ChangeFeed:
    return ChangeFeed(DeltaPublisher(fleet.publisher), MODEL, "topic")


def current(fleet: Fleet) -> Pointer:
    pointer = fleet.publisher.pointer(MODEL)
    assert pointer is not None
    return pointer


def test_of_the_records_of_one_item_the_last_counts(fleet: Fleet) -> None:
    gone = {"item_id": 3, "withdrawn": True}
    result = feed_of(fleet).publish(
        [
            record(row(3, sid=[9, 9])), record(gone), record(row(3, withdrawn=False)),
            record(row(4)), record({"item_id": 4, "withdrawn": True}), record(None, key=b"1"),
        ]
    )  # fmt: skip
    assert (result.upserts, result.withdrawn, result.refused, result.chain) == (1, 2, [], 1)
    with fleet.watcher():
        until_active(fleet, current(fleet))
        assert served(fleet) == {1: (1, False), 2: (2, True), 3: (3, True)}


def test_records_that_make_no_sense_are_named_and_the_others_are_published(fleet: Fleet) -> None:
    bad = [
        b"{", b"[]", b"\xff", row("x"), row(5, sid=[1]), row(6, sid=[1, 99]), row(7, price="x"),
        row(8, color=1), {"item_id": 9}, {"sid": [1, 1]}, b'{"item_id": 1' + b"[" * 5000,
    ]  # fmt: skip
    records = [record(value, number) for number, value in enumerate(bad)]
    records += [record(None, 11), record(None, 12, b"one"), record(None, 13, str(2**70).encode())]
    records += [record(None, 14, b"1_0")]
    records += [record(row(10), 15), record(row(11, price=2), 16)]
    result = feed_of(fleet).publish(records)
    assert sorted(line.partition(":")[0] for line in result.refused) == sorted(f"topic 0 @ {n}" for n in range(15))
    assert (result.upserts, result.withdrawn) == (2, 0)
    before = current(fleet)
    assert feed_of(fleet).publish([record(b"{")]).version is None
    assert feed_of(fleet).publish([]).version is None
    assert current(fleet) == before


def test_the_same_records_again_make_the_same_items(fleet: Fleet) -> None:
    records = [record(row(3, sid=[5, 5])), record(None, key=b"2")]
    feed_of(fleet).publish(records)
    feed_of(fleet).publish(records)
    with fleet.watcher():
        until_active(fleet, current(fleet))
        assert served(fleet) == {1: (1, True), 2: (2, False), 3: (5, True)}


def test_a_version_published_meanwhile_becomes_the_parent(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = DeltaPublisher.publish
    others = [record(row(20))]

    def overtaken(self: DeltaPublisher, *arguments: Any, **named: Any) -> Any:
        if others:
            feed_of(fleet).publish([others.pop()])
        return publish(self, *arguments, **named)

    monkeypatch.setattr(DeltaPublisher, "publish", overtaken)
    assert feed_of(fleet).publish([record(row(3))]).chain == 2
    with fleet.watcher():
        until_active(fleet, current(fleet))
        assert sorted(served(fleet)) == [1, 2, 3, 20]


def test_the_helper_process_makes_a_full_form_and_says_what_went_wrong(fleet: Fleet, tmp_path: Path) -> None:
    version = feed_of(fleet).publish([record(row(3))]).version
    assert version is not None
    lines_said: list[str] = []
    with RebaseHelper(fleet.settings, None, lines_said.append) as helper:
        helper.start(version)
    with RebaseHelper(fleet.settings, None, lines_said.append) as helper:
        helper.start("unknown")
    assert "is there in full: 3 items" in lines_said[0]
    assert "no full form could be made: version unknown is not in Redis" in lines_said[1]
    table = lines(tmp_path / "all.jsonl", *[
        {"item_id": 1, "sid": [1, 1], "title": "a", "price": 1.0},
        {"item_id": 2, "sid": [2, 2], "title": "b", "price": None}, row(3),
    ])  # fmt: skip
    rebuilt = blob.version_of(blob.encode(load_source(table, model=MODEL, sizes=SIZES)))
    assert fleet.redis.exists(fleet.keys.manifest(rebuilt))


def test_of_two_columns_with_one_name_neither_is_taken(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["item_id", "item_id"]), tmp_path / "two.parquet"
    )
    with pytest.raises(CatalogError, match="two columns are named 'item_id'") as caught:
        load_ids(tmp_path / "two.parquet")
    assert caught.value.reason == "structure"
