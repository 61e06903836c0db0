"""Dead letters for people: a table of many, everything of one."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from consumer.wire.request import readable_fields
from consumer.wire.settings import WireLimits
from consumer.wire.stored_letter import StoredLetter

MOST_BYTES = 512
MOST_IDS = 32
_ROW = 16
_BINARY_IDS = {"history": "<i8", "append": "<i8", "tokens": "<i4"}


def letter_row(letter: StoredLetter) -> dict[str, str]:
    """A row of the list, by column."""
    return {
        "at": letter.at,
        "time": _time(letter.record.timestamp_ms),
        "class": _plain(letter.error_class),
        "stage": _plain(letter.stage),
        "message": _plain(letter.message),
        "from": origin_of(letter),
        "attempt": str(letter.attempt),
        "bytes": f"{len(letter.record.value or b''):,}{' cut' if letter.truncated else ''}",
    }


def origin_of(letter: StoredLetter) -> str:
    """Where the record stood: ``topic[partition]@offset``."""
    origin = letter.origin
    return "unknown" if origin is None else f"{origin.topic}[{origin.partition}]@{origin.offset}"


def letter_page(letter: StoredLetter, limits: WireLimits) -> RenderableType:
    """Headers, then the fields as far as they can be read, then the value's first bytes."""
    record = letter.record
    headers = _grid((name, _bytes(content)) for name, content in record.headers)
    fields = readable_fields(record.value, limits)
    value = record.value or b""
    shown = f", the first {MOST_BYTES} shown" if len(value) > MOST_BYTES else ""
    return Group(
        _grid(
            (
                ("at", letter.at),
                ("time", _time(record.timestamp_ms)),
                ("from", origin_of(letter)),
                ("key", _bytes(record.key)),
                ("replay", letter.obstacle or "possible"),
            )
        ),
        _heading("headers" if record.headers_readable else "headers: the client cannot read them"),
        headers,
        _heading("fields" if fields else "fields: none can be read"),
        _grid((name, _field(name, content)) for name, content in fields.items()),
        _heading(f"value: {len(value):,} bytes{shown}"),
        Text("\n".join(_hex(value[:MOST_BYTES]))),
    )


def counts_table(counts: Mapping[tuple[str, str, str], int]) -> Table:
    """How many letters of each (class, stage, topic)."""
    table = Table("letters", "class", "stage", "back to")
    for names, count in sorted(counts.items(), key=lambda entry: -entry[1]):
        table.add_row(f"{count:,}", *(Text(_plain(name)) for name in names))
    return table


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, content in rows:
        table.add_row(Text(_plain(name), style="bold"), Text(content))
    return table


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="underline")


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):  # a producer may stamp what it likes
        return f"{timestamp_ms} ms"


def _bytes(content: bytes | None) -> str:
    """As text if it is printable text, else in hexadecimal."""
    if content is None:
        return "none"
    text = content.decode("utf-8", "replace")
    return text if text.isprintable() and "\ufffd" not in text else f"0x{content.hex()}"


def _field(name: str, content: Any) -> str:
    if isinstance(content, bytes) and name in _BINARY_IDS:
        dtype = np.dtype(_BINARY_IDS[name])
        if len(content) % dtype.itemsize == 0:
            content = np.frombuffer(content, dtype).tolist()
    if isinstance(content, list) and len(content) > MOST_IDS:
        return f"{str(content[:MOST_IDS])[:-1]}, ... {len(content):,} in all]"
    return _bytes(content) if isinstance(content, bytes) else _plain(str(content))


def _plain(text: str) -> str:
    """Without anything that would speak to the terminal."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _hex(value: bytes) -> Iterator[str]:
    for begin in range(0, len(value), _ROW):
        row = value[begin : begin + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{begin:08x}  {row.hex(' '):<{_ROW * 3 - 1}}  {letters}"
