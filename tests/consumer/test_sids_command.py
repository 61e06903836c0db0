from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalog_sync import blob
from consumer.cli.main import main

Say = pytest.CaptureFixture[str]


@pytest.fixture
def vectors() -> np.ndarray:
    random = np.random.default_rng(1)
    return (random.normal(size=(8, 6))[np.arange(200) % 8] * 5 + random.normal(size=(200, 6)) * 0.2).astype(np.float32)


def test_embeddings_become_a_catalog(tmp_path: Path, vectors: np.ndarray, capsys: Say) -> None:
    np.save(tmp_path / "e.npy", vectors)
    items, output = tmp_path / "items.parquet", tmp_path / "c.rsc"
    assert main(["sids", "build", str(tmp_path / "e.npy"), "--levels", "8,4", "--output", str(items)]) == 0
    said = capsys.readouterr().out
    assert "200 items" in said
    assert "--levels 8,4," in said
    words = said.partition("next: recallstream ")[2].split()
    assert main([{"NAME": "m", "FILE": str(output)}.get(word, word) for word in words]) == 0
    catalog = blob.decode(output.read_bytes())
    assert (catalog.items, catalog.leaves) == (200, 200)


def test_a_table_keeps_its_columns_and_shared_sids_get_ranks(tmp_path: Path, vectors: np.ndarray) -> None:
    table = pa.table(
        {
            "item_id": [f"film {n}" for n in range(200)],
            "title": [f"T{n}" for n in range(200)],
            "vector": pa.array(list(vectors), pa.list_(pa.float32())),
        }
    )
    source, items = tmp_path / "e.parquet", tmp_path / "items.parquet"
    pq.write_table(table, source)
    flags = ["--levels", "8", "--collisions", "shared", "--column", "vector", "--output", str(items)]
    assert main(["sids", "build", str(source), *flags]) == 0
    made = pq.read_table(items)
    assert made.column_names == ["item_id", "title", "sid", "rank"]
    assert made["title"].to_pylist() == table["title"].to_pylist()
    assert {len(sid) for sid in made["sid"].to_pylist()} == {1}
    output = tmp_path / "c.rsc"
    assert main(["catalog", "build", str(items), "--model", "m", "--levels", "8", "--output", str(output)]) == 0
    assert blob.decode(output.read_bytes()).leaves <= 8


@pytest.mark.parametrize(
    ("make", "flags", "code", "says"),
    [
        (lambda path: None, [], 1, "e.npy"),
        (lambda path: path.write_bytes(b"no matrix"), [], 1, "e.npy"),
        (lambda path: np.save(path, np.ones(3, np.float32)), [], 1, "not a matrix"),
        (lambda path: np.save(path, np.ones((3, 2), np.int32)), [], 1, "not a matrix"),
        (lambda path: np.save(path, np.array([[1.0], [np.nan]])), [], 1, "row 2"),
        (lambda path: np.save(path, np.ones((3, 2))), ["--levels", "a"], 2, "levels"),
        (lambda path: np.save(path, np.ones((3, 2))), ["--levels", "0"], 1, "level"),
        (lambda path: np.save(path, np.ones((3, 2))), ["--collisions", "x"], 2, "collisions"),
    ],
)
def test_an_error_is_one_line_and_no_file(
    tmp_path: Path, capsys: Say, make: object, flags: list[str], code: int, says: str
) -> None:
    make(tmp_path / "e.npy")  # type: ignore[operator]
    output = tmp_path / "items.parquet"
    assert main(["sids", "build", str(tmp_path / "e.npy"), "--output", str(output), *flags]) == code
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1
    assert not output.exists()


def test_a_table_without_the_columns_or_with_uneven_vectors_is_an_error(tmp_path: Path, capsys: Say) -> None:
    source, output = tmp_path / "e.parquet", tmp_path / "o"
    for columns, says in (
        ({"item_id": [1]}, "embedding"),
        ({"embedding": [[1.0]]}, "item_id"),
        ({"item_id": [1], "embedding": [3]}, "not lists"),
        ({"item_id": [1, 2], "embedding": [[1.0], [1.0, 2.0]]}, "one length"),
        ({"item_id": [1, 2], "embedding": [[1.0], None]}, "not all there"),
    ):
        pq.write_table(pa.table(columns), source)
        assert main(["sids", "build", str(source), "--output", str(output)]) == 1
        assert says in capsys.readouterr().err
