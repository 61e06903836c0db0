"""Item embeddings from a file: ``.npy``, or a Parquet table with a column of vectors."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.errors import CatalogError


@dataclass(frozen=True, slots=True)
class Embeddings:
    """``vectors``: float32 ``[n, d]``; ``items``: the table's other columns, ``item_id`` among them."""

    vectors: NDArray[np.float32]
    items: pa.Table


def read_embeddings(path: Path, column: str) -> Embeddings:
    """Rows of a ``.npy`` matrix are items 0, 1, ...; a Parquet table has ``item_id`` and the vectors in ``column``.

    Raises CatalogError ``source``: no such file, no matrix, a row of another length, a value that is not finite.
    """
    try:
        if path.suffix == ".npy":
            vectors = np.load(path, allow_pickle=False)
            items = pa.table({"item_id": pa.array(np.arange(len(vectors)))})
        else:
            table = pq.read_table(path)
            vectors, items = _matrix(table, column, path), table.drop_columns([column])
    except (OSError, ValueError, pa.ArrowException) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CatalogError("source", f"{path}: {why}") from error
    if vectors.ndim != 2 or not vectors.size or vectors.dtype.kind != "f":
        raise CatalogError("source", f"{path}: not a matrix of floats, one row an item, but {_shape(vectors)}")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise CatalogError("source", f"{path}: row {bad[0] + 1}: a value is not a finite number")
    return Embeddings(np.ascontiguousarray(vectors, dtype=np.float32), items)


def _matrix(table: pa.Table, column: str, path: Path) -> NDArray[np.floating]:
    for name in ("item_id", column):
        if name not in table.column_names:
            raise CatalogError("source", f"{path}: has no column {name}, but {', '.join(table.column_names)}")
    if len(set(table.column_names)) < len(table.column_names):
        raise CatalogError("source", f"{path}: two columns have the same name")
    vectors = table[column].combine_chunks()
    kind = vectors.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise CatalogError("source", f"{path}: column {column} holds {kind}, not lists of floats")
    lengths = pc.list_value_length(vectors)
    flat = vectors.flatten()
    if vectors.null_count or flat.null_count or len(set(lengths.unique().to_pylist())) != 1:
        raise CatalogError("source", f"{path}: column {column}: the vectors are not all there or not of one length")
    matrix: NDArray[np.floating] = flat.to_numpy(zero_copy_only=False).reshape(len(vectors), -1)
    return matrix


def _shape(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} {list(array.shape)}"
