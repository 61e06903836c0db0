"""Find the line of a JSON-lines file that the fast reader refused."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.errors import CatalogError


class _Line(msgspec.Struct, gc=False):
    item_id: int | str
    sid: list[int]
    tags: list[str] | None = None
    rank: float | None = None
    recallable: bool | None = None


def line_of_row(path: Path, row: int) -> str:
    """How an error names row ``row`` (0-based): its line in the file; blank lines hold no row."""
    for at, (number, _) in enumerate(_lines(path)):
        if at == row:
            return f"line {number}"
    return f"row {row}"


def fault_in_lines(path: Path) -> CatalogError | None:
    """The first line that is no JSON object of the wanted types, or whose columns have another type than before."""
    decoder = msgspec.json.Decoder(_Line)
    kinds: dict[str, tuple[str, int]] = {}
    for number, line in _lines(path):
        try:
            decoder.decode(line)
            values: dict[str, object] = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return CatalogError("source", f"line {number}: {error}")
        for key, value in values.items():
            if value is None:
                continue
            kind = _kind(value)
            before, first = kinds.setdefault(key, (kind, number))
            if kind != before:
                return CatalogError("source", f"line {number}: {key} is {kind}, on line {first} it is {before}")
    return None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _kind(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
