"""Item changes as a delta: from item tables and lists of ids, checked against the version that they change."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catalog_sync import blob
from catalog_sync.columns import ARROW_TYPES
from catalog_sync.json_lines import Int64, lines_of
from catalog_sync.layout import Manifest
from catalog_sync.source import PARQUET_SUFFIXES, ids_column, load_source, one_column
from engine.catalog.build import check_unique, row_name
from engine.catalog.catalog import Catalog, Ids, joined_ids, sid_dtype
from engine.catalog.delta import Delta
from engine.catalog.tags import TagIndex
from engine.errors import CatalogError


class _Named(msgspec.Struct):
    item_id: Int64 | str


_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NAMED = msgspec.json.Decoder(_Named)


def make_delta(parent: Manifest, upserts: Catalog | None, withdrawn: Sequence[Ids]) -> tuple[Delta, bytearray]:
    """A delta over a version, and its bytes. Raises CatalogError: ``empty``, ``incompatible``, ``duplicate``."""
    brought = no_items(parent) if upserts is None else like_parent(upserts, parent)
    gone = no_items(parent).ids
    for ids in withdrawn:
        if isinstance(ids, np.ndarray) is not (parent.ids == "int64"):
            raise CatalogError("incompatible", f"the item ids of version {parent.version} are of kind {parent.ids}")
        gone = joined_ids(gone, ids)
    if not brought.items and not len(gone):
        raise CatalogError("empty", "nothing to add and nothing to withdraw")
    check_unique(joined_ids(brought.ids, gone), lambda at: _named(at, brought.items))
    gone = np.sort(gone) if isinstance(gone, np.ndarray) else gone.take(pc.sort_indices(gone))
    delta = Delta("", parent.version, brought, gone)
    data = blob.encode(delta)
    return replace(delta, version=blob.version_of(data)), data


def load_upserts(path: Path, parent: Manifest) -> Catalog:
    """The items of a table as ``catalog build`` reads it. Raises CatalogError naming the file and the line or row."""
    items = load_source(path, model=parent.model, sizes=parent.sizes)
    try:
        return like_parent(items, parent)
    except CatalogError as error:
        raise CatalogError(error.reason, f"{path}: {error.message}") from error


def load_ids(path: Path) -> Ids:
    """The column ``item_id`` of a Parquet or JSON-lines file. Raises CatalogError naming the file and the line or row.

    Reasons: ``source``, ``structure``.
    """
    try:
        if path.suffix in PARQUET_SUFFIXES:
            return _ids_of_parquet(path)
        return _ids_of_lines(path)
    except CatalogError as error:
        raise CatalogError(error.reason, f"{path}: {error.message}") from error
    except (OSError, pa.ArrowException) as error:
        raise CatalogError("source", f"{path}: {error}") from error


def parse_ids(words: Sequence[str], parent: Manifest) -> Ids:
    """Ids from the command line. Raises CatalogError ``structure`` for a word that is no integer where ids are."""
    if parent.ids == "string":
        return pa.array(words, pa.string())
    try:
        return np.array([int64_of(word) for word in words], dtype=np.int64)
    except ValueError as error:
        raise CatalogError("structure", f"{error}: the item ids of version {parent.version} are int64") from error


def int64_of(text: str) -> int:
    """An id as text. Raises ValueError for what is no int64 in plain decimal digits: ``int`` would take 1_0 for 10."""
    if not (_INTEGER.fullmatch(text) and -(2**63) <= (number := int(text)) < 2**63):
        raise ValueError(f"{text[:40]!r} is no int64")
    return number


def like_parent(items: Catalog, parent: Manifest) -> Catalog:
    """The items with the parent's field types; fields that they lack are null. Raises CatalogError ``incompatible``."""
    if isinstance(items.ids, np.ndarray) is not (parent.ids == "int64"):
        raise CatalogError("incompatible", f"the item ids of version {parent.version} are of kind {parent.ids}")
    if unknown := sorted(items.fields.keys() - parent.fields.keys()):
        raise CatalogError("incompatible", f"version {parent.version} has no field {unknown[0]!r}: build a new base")
    fields = {}
    for name, kind in parent.fields.items():
        column, wanted = items.fields.get(name), ARROW_TYPES[kind]
        if column is None or column.null_count == len(column):
            fields[name] = pa.nulls(items.items, wanted)
        elif column.type == wanted or (column.type, wanted) == (pa.int64(), pa.float64()):
            fields[name] = column.cast(wanted)
        else:
            raise CatalogError("incompatible", f"field {name!r} is {column.type}, not {kind}")
    return replace(items, fields=fields)


def no_items(parent: Manifest) -> Catalog:
    """An empty catalog of the parent's kind."""
    none = np.empty(0, dtype=np.int64)
    return Catalog(
        "",
        parent.model,
        parent.sizes,
        sids=np.empty((0, len(parent.sizes)), dtype=sid_dtype(parent.sizes)),
        ids=none if parent.ids == "int64" else pa.array([], pa.string()),
        recallable=np.empty(0, dtype=np.bool_),
        rank=None,
        tags=TagIndex.of({}, 0),
        fields={name: pa.nulls(0, ARROW_TYPES[kind]) for name, kind in parent.fields.items()},
    )


def _ids_of_parquet(path: Path) -> Ids:
    table = pq.ParquetFile(path).read(columns=["item_id"])
    if "item_id" not in table.column_names:
        raise CatalogError("structure", "there is no column 'item_id'")
    return ids_column(one_column(table, "item_id"), row_name)


def _ids_of_lines(path: Path) -> Ids:
    ids: list[int | str] = []
    for number, line in lines_of(path):
        try:
            ids.append(_NAMED.decode(line).item_id)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CatalogError("source", f"line {number}: {error}") from error
        if type(ids[-1]) is not type(ids[0]):
            raise CatalogError("source", f"line {number}: item_id is of another kind than on the lines before")
    if ids and isinstance(ids[0], str):
        return pa.array(ids, pa.string())
    return np.array(ids, dtype=np.int64)


def _named(at: int, upserts: int) -> str:
    return f"added item {at}" if at < upserts else f"withdrawn id {at - upserts}"
