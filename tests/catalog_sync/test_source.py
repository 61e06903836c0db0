import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalog_sync.json_lines import MAX_LINE_BYTES
from catalog_sync.source import load_source
from engine.catalog.catalog import Catalog
from engine.errors import CatalogError

GOOD = {"item_id": 1, "sid": [1, 2]}
DEEP = '{"item_id": 2, "sid": [1, 2], "deep": ' + "[" * 100_000 + "]" * 100_000 + "}"
RECORDS = [
    {"item_id": 30, "sid": [3, 0], "tags": ["new", "eu"], "rank": 2, "title": "Thirty", "year": 1999, "kinds": ["x"]},
    {"item_id": 10, "sid": [1, 2], "tags": [], "rank": 5.5, "title": None, "year": 2001, "kinds": []},
    {"item_id": 20, "sid": [1, 2], "tags": None, "rank": -1, "title": "Twenty", "recallable": False},
    {"item_id": 11, "sid": [1, 2], "tags": ["eu", "eu"], "title": "Eleven", "year": None, "kinds": ["y", "x"]},
]


def load(path: Path) -> Catalog:
    return load_source(path, model="m", sizes=(4, 4))


def write_lines(path: Path, lines: Sequence[Mapping[str, object] | str]) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def write_parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def check_records(catalog: Catalog) -> None:
    assert isinstance(catalog.ids, np.ndarray)
    assert catalog.ids.tolist() == [20, 10, 11, 30]  # of one SID: by rank, without a rank last
    assert catalog.recallable.tolist() == [False, True, True, True]
    assert {tag: bits.tolist() for tag, bits in catalog.tags.items()} == {
        "eu": [False, False, True, True],
        "new": [False, False, False, True],
    }
    assert {name: column.to_pylist() for name, column in catalog.fields.items()} == {
        "title": ["Twenty", None, "Eleven", "Thirty"],
        "year": [None, 2001, None, 1999],
        "kinds": [None, [], ["y", "x"], ["x"]],
    }


def test_json_lines_with_every_column(tmp_path: Path) -> None:
    check_records(load(write_lines(tmp_path / "items.jsonl", RECORDS)))


def test_parquet_gives_the_same_catalog(tmp_path: Path) -> None:
    names = ("item_id", "sid", "tags", "rank", "title", "year", "kinds", "recallable")
    columns = {name: [record.get(name) for record in RECORDS] for name in names}
    columns["rank"] = pa.array([None if rank is None else float(rank) for rank in columns["rank"]])  # type: ignore[arg-type]  # the records are plain objects
    check_records(load(write_parquet(tmp_path / "items.parquet", **columns)))


@pytest.mark.parametrize(
    "sid",
    [
        pa.array([[1, 2]], pa.list_(pa.uint8())),
        pa.array([[1, 2]], pa.large_list(pa.int64())),
        pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
    ],
)
@pytest.mark.parametrize("item_id", [pa.array(["x"], pa.large_string()), pa.array(["x"]).dictionary_encode()])
def test_parquet_types_of_the_same_meaning_are_accepted(tmp_path: Path, sid: pa.Array, item_id: pa.Array) -> None:
    tags = pa.array([["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    catalog = load(write_parquet(tmp_path / "items.parquet", item_id=item_id, sid=sid, tags=tags, kinds=tags))
    assert (list(catalog.tags), catalog.fields["kinds"].to_pylist()) == (["a"], [["a"]])
    assert (list(map(str, catalog.ids)), [code.tolist() for code in catalog.trie.code]) == (["x"], [[1], [2]])


def test_text_that_looks_like_a_date_stays_text(tmp_path: Path) -> None:
    line = {
        "item_id": "2020-01-01",
        "sid": [0, 0],
        "released": "1999-12-31",
        "tags": ["2020-01-01"],
        "d": ["1999-12-31"],
    }
    catalog = load(write_lines(tmp_path / "items.jsonl", [line]))
    assert list(map(str, catalog.ids)) == ["2020-01-01"]
    assert catalog.fields["released"].to_pylist() == ["1999-12-31"]
    assert catalog.fields["d"].to_pylist() == [["1999-12-31"]]


def test_a_byte_order_mark_counts_for_nothing(tmp_path: Path) -> None:
    (path := tmp_path / "items.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n{bad")
    with pytest.raises(CatalogError, match="line 2: JSON is malformed"):
        load(path)
    path.write_bytes(path.read_bytes().removesuffix(b"{bad"))
    assert load(path).ids.tolist() == [1]


def test_a_line_that_is_too_long_is_named(tmp_path: Path) -> None:
    long = json.dumps({**GOOD, "text": "x" * MAX_LINE_BYTES})
    with pytest.raises(CatalogError, match="line 2 is longer than 16 MiB"):
        load(write_lines(tmp_path / "items.jsonl", [{**GOOD, "item_id": 2}, long]))


def test_a_column_of_arrays_may_begin_with_nulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catalog_sync.source._BLOCK_BYTES", 256)  # types are settled block by block
    kinds = [None] * 10 + [["x"]]
    lines = [{"item_id": i, "sid": [0, 0], "kinds": kind} for i, kind in enumerate(kinds)]
    assert load(write_lines(tmp_path / "items.jsonl", lines)).fields["kinds"].to_pylist() == kinds


TEXT = pa.Array.from_buffers(pa.string(), 2, [None, *map(pa.py_buffer, (np.arange(3, dtype=np.int32), b"x\xff"))])
"""Two strings of which the second is not UTF-8."""


@pytest.mark.parametrize("column", ["item_id", "tags", "title", "kinds"])
def test_text_that_is_not_utf8_is_named(tmp_path: Path, column: str) -> None:
    lists = column in ("tags", "kinds")
    text = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), TEXT) if lists else TEXT
    columns = {"item_id": pa.array(["a", "b"]), "sid": pa.array([[0, 0]] * 2), column: text}
    with pytest.raises(CatalogError, match=f"row 1: {column} is not valid UTF-8"):
        load(write_parquet(tmp_path / "items.parquet", **columns))
    lines = [{"item_id": id_, "sid": [0, 0], column: ["?"] if lists else "?"} for id_ in "ab"]
    path = write_lines(tmp_path / "items.jsonl", lines if column != "item_id" else [{**GOOD, "item_id": "?"}])
    path.write_bytes(path.read_bytes().replace(b"?", b"\xff"))
    with pytest.raises(CatalogError, match=f"line 1: {column} is not valid UTF-8"):
        load(path)


def test_a_key_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "items.jsonl", [GOOD, {"item_id": 2, "sid": [0, 0], "?": 1}])
    path.write_bytes(path.read_bytes().replace(b"?", b"\xff"))
    with pytest.raises(CatalogError, match="line 2: Invalid UTF-8"):
        load(path)


def test_ids_keep_all_64_bits(tmp_path: Path) -> None:
    ids = [2**63 - 1, 2**53 + 1, -(2**63)]
    catalog = load(write_lines(tmp_path / "x.jsonl", [{"item_id": i, "sid": [0, n]} for n, i in enumerate(ids)]))
    assert catalog.ids.tolist() == ids


@pytest.mark.parametrize(
    ("lines", "reason", "text"),
    [
        ([], "empty", "the file is empty"),
        (["", "  ", ""], "empty", "no item"),
        ([GOOD, "", GOOD], "duplicate", "line 3: item id 1 is already on line 1"),
        ([GOOD, {"item_id": 2, "sid": [1]}], "structure", "line 2: sid has 1 codes, the model has 2 levels"),
        ([GOOD, {"item_id": 2}], "structure", "line 2: sid is missing"),
        ([GOOD, {"item_id": 2, "sid": [1, None]}], "structure", "line 2: sid"),
        ([GOOD, {"item_id": 2, "sid": [1, 4]}], "range", "line 2: code 4 at level 1 is not in 0 to 3"),
        ([GOOD, {"item_id": 2, "sid": [-1, 2]}], "range", "line 2: code -1 at level 0"),
        ([GOOD, {"item_id": 2, "sid": [2**40, 2]}], "range", "line 2: code 1099511627776"),
        ([GOOD, {"item_id": 2, "sid": [1, 1.5]}], "source", "line 2: Expected `int`"),
        ([GOOD, {"item_id": "2", "sid": [1, 1]}], "source", "line 2: item_id is a string, on line 1 it is a number"),
        ([GOOD, {"item_id": None, "sid": [1, 1]}], "structure", "line 2: item_id is missing"),
        ([{"sid": [1, 1]}], "structure", "no column 'item_id'"),
        ([GOOD, {"item_id": 1.5, "sid": [1, 1]}], "source", "line 2: Expected `int | str`, got `float`"),
        ([GOOD, {"item_id": 2**63, "sid": [1, 1]}], "source", "line 2: Expected `int` <= 9223372036854775807"),
        ([GOOD, {"item_id": 2, "sid": [1, 2**70]}], "source", "line 2: Expected `int` <= 9223372036854775807"),
        ([GOOD, '{"item_id": 2, "sid": [1, 1]} {"item_id": 3, "sid": [1, 1]}'], "source", "line 2: JSON is malformed"),
        ([GOOD, '{"item_id": 2,', '"sid": [1, 1]}'], "source", "line 2: Input data was truncated"),
        ([GOOD, "null"], "source", "line 2: Expected `object`"),
        ([GOOD, DEEP], "source", "line 2: maximum recursion depth"),
        ([GOOD, "{bad"], "source", "line 2: JSON is malformed"),
        ([GOOD, "[1]"], "source", "line 2: Expected `object`"),
        ([GOOD, '{"item_id": 2, "sid": [1, 1], "rank": NaN}'], "rank", "line 2: rank is not a number"),
        ([{**GOOD, "rank": "high"}], "source", "line 1: Expected `float"),
        ([GOOD, {"item_id": 2, "sid": [1, 1], "tags": ["a", None]}], "structure", "line 2: tags"),
        ([{**GOOD, "size": {"w": 1}}], "structure", "column 'size' is struct"),
        ([{**GOOD, "year": 1}, {"item_id": 2, "sid": [1, 1], "year": "1"}], "source", "line 2: year is a string"),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, lines: Sequence[Mapping[str, object] | str], reason: str, text: str
) -> None:
    path = write_lines(tmp_path / "items.jsonl", lines)
    with pytest.raises(CatalogError) as caught:
        load(path)
    assert (caught.value.reason, text in caught.value.message) == (reason, True), caught.value.message
    assert caught.value.message.startswith(str(path))


@pytest.mark.parametrize(
    ("columns", "reason", "text"),
    [
        ({"item_id": [1, 1], "sid": [[1, 1], [2, 2]]}, "duplicate", "row 1: item id 1 is already on row 0"),
        ({"item_id": [1, 2], "sid": [[1, 1], [2, 2, 2]]}, "structure", "row 1: sid has 3 codes"),
        ({"item_id": [1, 2], "sid": [[1, 1], [2, 9]]}, "range", "row 1: code 9"),
        ({"item_id": [1, 2], "sid": [[1, 1], None]}, "structure", "row 1: sid is missing"),
        ({"item_id": [1, None], "sid": [[1, 1], [1, 1]]}, "structure", "row 1: item_id is missing"),
        ({"item_id": [1], "sid": [[1, 1]], "rank": [float("nan")]}, "rank", "row 0: rank"),
        ({"item_id": [1], "sid": [[1.0, 1.0]]}, "structure", "sid is list"),
        ({"item_id": pa.array([2**63], pa.uint64()), "sid": [[1, 1]]}, "structure", "column 'item_id'"),
        ({"item_id": [], "sid": []}, "empty", "no item"),
        ({"item_id": [1]}, "structure", "no column 'sid'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, columns: dict[str, object], reason: str, text: str) -> None:
    with pytest.raises(CatalogError) as caught:
        load(write_parquet(tmp_path / "items.parquet", **columns))
    assert (caught.value.reason, text in caught.value.message) == (reason, True), caught.value.message


@pytest.mark.parametrize("name", ["items.parquet", "items.jsonl"])
def test_files_that_are_missing_empty_or_not_what_they_are_called(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content, reason in ((None, "source"), (b"", "empty"), (b"\x00\xff garbage \xfe", "source")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CatalogError) as caught:
            load(path)
        assert caught.value.reason == reason
