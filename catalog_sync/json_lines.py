"""Lines of a JSON-lines file: what the fast reader cannot tell of them, or would fail on without naming the line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta

from engine.errors import CatalogError

MAX_LINE_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
_SHORT = 4096  # a line of fewer bytes cannot be nested deep enough to harm
_BRACKETS = 512

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Line(msgspec.Struct, gc=False):
    item_id: Int64 | str
    sid: list[Int64]
    tags: list[str] | None = None
    rank: float | None = None
    recallable: bool | None = None


_DECODER = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a value is, in words; ``type`` for what a reader may take for something else."""

    words: str
    type: pa.DataType | None = None


def line_of_row(path: Path, row: int) -> str:
    """How an error names row ``row`` (0-based): its line in the file; blank lines hold no row."""
    for at, (number, _) in enumerate(lines_of(path)):
        if at == row:
            return f"line {number}"
    return f"row {row}"


def check_lines(path: Path) -> int:
    """Number of objects, one a line. Raises CatalogError ``source`` for a line that is none, or is too long or deep."""
    rows = 0
    for number, line in lines_of(path):
        whole = line.startswith(b"{") and line.endswith(b"}")
        # the fast reader overflows its stack on deep nesting, msgspec counts it
        deep = len(line) > _SHORT and line.count(b"[") + line.count(b"{") > _BRACKETS
        if not whole or deep:
            _decode(number, line)
        rows += 1
    return rows


def column_types(path: Path) -> dict[str, pa.DataType]:
    """Types of the columns of text and of arrays of text.

    Raises CatalogError ``source`` for the first line that is no object of the wanted types, or whose columns have
    another type than before.
    """
    kinds: dict[str, tuple[_Kind, int]] = {}
    for number, line in lines_of(path):
        for key, value in _decode(number, line).items():
            kind = _kind_of(value)
            if kind is None:
                continue
            before, first = kinds.setdefault(key, (kind, number))
            if kind != before:
                raise CatalogError(
                    "source", f"line {number}: {key} is {kind.words}, on line {first} it is {before.words}"
                )
    return {key: kind.type for key, (kind, _) in kinds.items() if kind.type is not None}


def _decode(number: int, line: bytes) -> dict[str, object]:
    try:
        _DECODER.decode(line)
        values: dict[str, object] = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CatalogError("source", f"line {number}: {error}") from error
    return values


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, without the white space around them, and their numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise CatalogError("source", f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB")
            text = (line.removeprefix(_BOM) if number == 1 else line).strip()
            if text:
                yield number, text


def _kind_of(value: object) -> _Kind | None:
    """None for what fits every kind: null, an empty array."""
    match value:
        case None | []:
            return None
        case bool():
            return _Kind("true or false")
        case int() | float():
            return _Kind("a number")
        case str():
            return _Kind("a string", pa.string())
        case list():
            inner = next((kind for kind in map(_kind_of, value) if kind is not None), None)
            if inner is None:
                return None
            return _Kind(f"an array with {inner.words}", pa.list_(inner.type) if inner.type is not None else None)
        case _:
            return _Kind("an object")
