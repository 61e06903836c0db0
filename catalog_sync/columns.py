"""Item columns (string ids, item fields) as plain buffers and back."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.catalog.bits import pack_bits
from engine.errors import CatalogError

ColumnType = Literal["bool", "int64", "float64", "string", "strings"]
Array = NDArray[Any]
Section = Callable[[str, str, int | None], Array]
"""Gives the section of a name with a dtype and (if known) a number of entries."""

ARROW_TYPES = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "strings": pa.list_(pa.string()),
}


def column_type(column: pa.Array) -> ColumnType:
    """The catalog's name of an arrow type. Raises CatalogError ``structure`` for a type that catalogs do not hold."""
    for name, kind in ARROW_TYPES.items():
        if column.type == kind:
            return name  # type: ignore[return-value]  # the keys of ARROW_TYPES are the literals
    raise CatalogError("structure", f"a catalog column cannot be {column.type}")


def column_sections(name: str, column: pa.Array) -> dict[str, Array]:
    """Buffers of a column by section name. Equal columns give equal bytes: nulls are stored over a fixed value."""
    sections: dict[str, Array] = {}
    if column.null_count:
        sections[f"{name}/valid"] = pack_bits(column.is_valid().to_numpy(zero_copy_only=False))
    match column_type(column):
        case "bool":
            sections[f"{name}/values"] = pack_bits(column.fill_null(False).to_numpy(zero_copy_only=False))
        case "int64" | "float64":
            sections[f"{name}/values"] = column.fill_null(0).to_numpy(zero_copy_only=False)
        case "string":
            sections |= _string_sections(name, column.fill_null(""))
        case "strings":
            lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
            sections[f"{name}/lists"] = _offsets(lengths)
            sections |= _string_sections(f"{name}/items", column.flatten())
    return sections


def read_column(name: str, kind: str, rows: int, nullable: bool, section: Section) -> pa.Array:
    """The column on top of the section's own memory. Raises CatalogError ``structure``."""
    valid = pa.py_buffer(section(f"{name}/valid", "|u1", -(-rows // 8))) if nullable else None
    match kind:
        case "bool":
            values = section(f"{name}/values", "|u1", -(-rows // 8))
            column = pa.Array.from_buffers(pa.bool_(), rows, [valid, pa.py_buffer(values)])
        case "int64" | "float64":
            values = section(f"{name}/values", "<i8" if kind == "int64" else "<f8", rows)
            column = pa.Array.from_buffers(ARROW_TYPES[kind], rows, [valid, pa.py_buffer(values)])
        case "string":
            column = _read_strings(name, rows, valid, section)
        case "strings":
            lists = section(f"{name}/lists", "<i4", rows + 1)
            check_begins(f"{name}/lists", lists, int(lists[-1]))
            child = _read_strings(f"{name}/items", int(lists[-1]), None, section)
            column = pa.Array.from_buffers(ARROW_TYPES[kind], rows, [valid, pa.py_buffer(lists)], children=[child])
        case _:
            raise CatalogError("structure", f"{name}: unknown column type {kind!r}")
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise CatalogError("structure", f"{name}: {error}") from error
    return column


def check_begins(name: str, begins: Array, end: int, strict: bool = False) -> None:
    """Range begins must start at 0, end at ``end`` and never fall (``strict``: always rise)."""
    # the bounds come first: within them a difference cannot overflow
    inside = begins[0] == 0 and begins[-1] == end and int(begins.min()) >= 0 and int(begins.max()) <= end
    if not inside or (np.diff(begins) < int(strict)).any():
        raise CatalogError("structure", f"{name}: begins do not run in order from 0 to {end}")


def _string_sections(name: str, column: pa.Array) -> dict[str, Array]:
    lengths = pc.binary_length(column).to_numpy(zero_copy_only=False)
    offsets = _offsets(lengths)
    text = np.empty(0, dtype=np.uint8)
    if len(column) and offsets[-1]:
        first = int(np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset])
        text = np.frombuffer(column.buffers()[2], dtype=np.uint8)[first : first + int(offsets[-1])]
    return {f"{name}/offsets": offsets, f"{name}/text": text}


def _read_strings(name: str, rows: int, valid: pa.Buffer | None, section: Section) -> pa.Array:
    offsets = section(f"{name}/offsets", "<i4", rows + 1)
    check_begins(f"{name}/offsets", offsets, int(offsets[-1]))
    text = section(f"{name}/text", "|u1", int(offsets[-1]))
    return pa.Array.from_buffers(pa.string(), rows, [valid, pa.py_buffer(offsets), pa.py_buffer(text)])


def _offsets(lengths: NDArray[np.integer]) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] >= 1 << 31:
        raise CatalogError("structure", "a column holds more than 2 GiB of text")
    return offsets.astype(np.int32)
