"""Item tables from JSON lines and Parquet. Errors name the line or the row."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
from numpy.typing import NDArray

from catalog_sync.json_lines import check_lines, column_types, line_of_row
from engine.catalog.build import build_catalog, check_sids, check_sizes, row_name
from engine.catalog.catalog import Catalog, Ids
from engine.catalog.tags import TagIndex
from engine.errors import CatalogError

PARQUET_SUFFIXES = (".parquet", ".pq")
COLUMNS = ("item_id", "sid", "tags", "rank", "recallable")
_KNOWN = {"tags": pa.list_(pa.string()), "rank": pa.float64(), "recallable": pa.bool_(), "sid": pa.list_(pa.int64())}
_BLOCK_BYTES = 16 << 20

RowName = Callable[[int], str]


def load_source(path: Path, *, model: str, sizes: tuple[int, ...], version: str = "") -> Catalog:
    """The catalog of an item table: Parquet by its suffix, else JSON lines.

    Columns: ``item_id`` (int64 or string), ``sid`` (array of codes), optionally ``tags`` (array of strings), ``rank``
    (number; an item without one comes last), ``recallable`` (default true); every further column is an item field.
    Raises CatalogError whose message names the file and the line or row: ``source``, ``empty``, ``structure``,
    ``range``, ``duplicate``, ``rank``.
    """
    sizes = check_sizes(sizes)
    try:
        if path.suffix in PARQUET_SUFFIXES:
            return _catalog(_read_parquet(path), row_name, model, sizes, version)
        return _catalog(_read_json_lines(path), lambda row: line_of_row(path, row), model, sizes, version)
    except CatalogError as error:
        raise CatalogError(error.reason, f"{path}: {error.message}") from error
    except OSError as error:
        raise CatalogError("source", f"{path}: {error.strerror or error}") from error


def _catalog(table: pa.Table, name: RowName, model: str, sizes: tuple[int, ...], version: str) -> Catalog:
    if table.num_rows == 0:
        raise CatalogError("empty", "there is no item in it")
    for column in ("item_id", "sid"):
        if column not in table.column_names:
            raise CatalogError("structure", f"there is no column {column!r}")
    if len(set(table.column_names)) < len(table.column_names):
        raise CatalogError("structure", "two columns have the same name")
    return build_catalog(
        version=version,
        model=model,
        sizes=sizes,
        ids=ids_column(one_column(table, "item_id"), name),
        sids=_sids(one_column(table, "sid"), sizes, name),
        recallable=_recallable(table),
        rank=_rank(table),
        tags=_tags(table, name),
        fields={key: _field(key, one_column(table, key), name) for key in table.column_names if key not in COLUMNS},
        name=name,
    )


def _read_parquet(path: Path) -> pa.Table:
    if path.stat().st_size == 0:
        raise CatalogError("empty", "the file is empty")
    try:
        return pq.ParquetFile(path).read()
    except pa.ArrowException as error:
        raise CatalogError("source", f"not a readable Parquet file: {error}") from error


def _read_json_lines(path: Path) -> pa.Table:
    if path.stat().st_size == 0:
        raise CatalogError("empty", "the file is empty")
    rows = check_lines(path)
    if rows == 0:
        raise CatalogError("empty", "there is no item in it")
    try:
        table = _parse_json(path, _KNOWN)
        # text that looks like a time must stay text: read such columns once more as strings
        times = {field.name: _timeless(field.type) for field in table.schema if _timeless(field.type) != field.type}
        if times:
            table = _parse_json(path, _KNOWN | times)
    except (pa.ArrowException, UnicodeDecodeError):
        table = None
    if table is None or table.num_rows != rows:
        table = _parse_slowly(path)
    if not _has_ids(table.schema):
        column_types(path)
    return table


def _parse_slowly(path: Path) -> pa.Table:
    """Parse with the types that all lines together show. Raises CatalogError ``source`` naming the line at fault."""
    types = column_types(path)
    try:
        return _parse_json(path, types | _KNOWN)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise CatalogError("source", f"not readable as JSON lines: {error}") from error


def _timeless(kind: pa.DataType) -> pa.DataType:
    """The type with text in the place of times, also inside of arrays."""
    if pa.types.is_list(kind):
        inner = _timeless(kind.value_type)
        return kind if inner == kind.value_type else pa.list_(inner)
    return pa.string() if pa.types.is_temporal(kind) else kind


def _has_ids(schema: pa.Schema) -> bool:
    at = schema.get_field_index("item_id")
    return at < 0 or pa.types.is_integer(schema.types[at]) or _is_text(schema.types[at])


def _parse_json(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    options = pj.ParseOptions(explicit_schema=pa.schema(list(types.items())))
    table = pj.read_json(path, pj.ReadOptions(block_size=_BLOCK_BYTES), options)
    absent = [key for key in _KNOWN if key in table.column_names and table[key].null_count == table.num_rows]
    return table.drop_columns([key for key in absent if key != "sid"])


def one_column(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece, dictionaries written out. Raises CatalogError ``structure``."""
    if table.column_names.count(name) > 1:
        raise CatalogError("structure", f"two columns are named {name!r}")
    column = table[name].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks != 1:
            raise CatalogError("structure", f"column {name!r} holds more than 2 GiB of text")
        column = column.chunk(0)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def ids_column(column: pa.Array, name: RowName) -> Ids:
    """A column of item ids. Raises CatalogError ``structure`` naming the row."""
    _no_nulls(column, "item_id", name)
    if pa.types.is_integer(column.type):
        return _cast(column, pa.int64(), "item_id").to_numpy(zero_copy_only=False)
    if _is_text(column.type):
        return _text(column, "item_id", name)
    raise CatalogError("structure", f"item_id is {column.type}, not int64 or string")


def _sids(column: pa.Array, sizes: tuple[int, ...], name: RowName) -> NDArray[np.int32]:
    if not _is_list(column.type) or not pa.types.is_integer(column.type.value_type):
        raise CatalogError("structure", f"sid is {column.type}, not an array of integers")
    _no_nulls(column, "sid", name)
    depth = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    wrong = depth != len(sizes)
    if wrong.any():
        row = int(wrong.argmax())
        raise CatalogError("structure", f"{name(row)}: sid has {depth[row]} codes, the model has {len(sizes)} levels")
    codes = column.flatten()
    _no_nulls(codes, "sid", lambda i: name(i // len(sizes)))
    matrix = _cast(codes, pa.int64(), "sid").to_numpy(zero_copy_only=False).reshape(-1, len(sizes))
    check_sids(matrix, sizes, name)
    sids: NDArray[np.int32] = matrix.astype(np.int32)
    return sids


def _recallable(table: pa.Table) -> NDArray[np.bool_] | None:
    if "recallable" not in table.column_names:
        return None
    column = _cast(one_column(table, "recallable"), pa.bool_(), "recallable")
    flags: NDArray[np.bool_] = column.fill_null(True).to_numpy(zero_copy_only=False)
    return flags


def _rank(table: pa.Table) -> NDArray[np.float64] | None:
    if "rank" not in table.column_names:
        return None
    column = one_column(table, "rank")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
        raise CatalogError("structure", f"rank is {column.type}, not a number")
    ranks: NDArray[np.float64] = column.cast(pa.float64(), safe=False).fill_null(np.inf).to_numpy(zero_copy_only=False)
    return ranks


def _tags(table: pa.Table, name: RowName) -> TagIndex | None:
    if "tags" not in table.column_names:
        return None
    column = one_column(table, "tags")
    if pa.types.is_null(column.type):
        return None
    if not _is_list(column.type) or not (_is_text(column.type.value_type) or pa.types.is_null(column.type.value_type)):
        raise CatalogError("structure", f"tags is {column.type}, not an array of strings")
    item = np.repeat(np.arange(len(column), dtype=np.int32), _lengths(column))
    held = _text(column.flatten(), "tags", lambda i: name(int(item[i])))
    _no_nulls(held, "tags", lambda i: name(int(item[i])))
    encoded = held.dictionary_encode()
    names = tuple(encoded.dictionary.to_pylist())
    return TagIndex.from_pairs(names, encoded.indices.to_numpy(), item, len(column))


def _lengths(column: pa.Array) -> NDArray[np.int32]:
    lengths: NDArray[np.int32] = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths


def _field(key: str, column: pa.Array, name: RowName) -> pa.Array:
    """A field column as one of the types that a catalog holds: bool, int64, float64, string, list of strings."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column
    if pa.types.is_integer(kind):
        return _cast(column, pa.int64(), key)
    if pa.types.is_floating(kind):
        return _cast(column, pa.float64(), key)
    if _is_text(kind) or pa.types.is_null(kind):
        return _text(column, key, name)
    if _is_list(kind) and (_is_text(kind.value_type) or pa.types.is_null(kind.value_type)):
        item = pc.list_parent_indices(column)
        held = _text(column.flatten(), key, lambda i: name(item[i].as_py()))
        _no_nulls(held, key, lambda i: name(item[i].as_py()))
        return _cast(column, pa.list_(pa.string()), key)
    raise CatalogError(
        "structure", f"column {key!r} is {kind}; fields are bool, int, float, string or lists of strings"
    )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _no_nulls(column: pa.Array, what: str, name: RowName) -> None:
    if column.null_count:
        row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise CatalogError("structure", f"{name(row)}: {what} is missing or holds a null")


def _text(column: pa.Array, what: str, name: RowName) -> pa.Array:
    """As strings; no reader checks that they are UTF-8."""
    text = _cast(column, pa.string(), what)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        wrong = next(row for row, value in enumerate(text.cast(pa.binary()).to_pylist()) if not _is_utf8(value))
        raise CatalogError("structure", f"{name(wrong)}: {what} is not valid UTF-8") from error
    return text


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _cast(column: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise CatalogError("structure", f"column {what!r}: {error}") from error
