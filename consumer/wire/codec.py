"""Bytes to a plain map and back, msgpack or JSON. No container is built before its size is allowed."""

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgpack
import msgspec

from consumer.wire.errors import Codec
from engine.errors import RequestError

Shape = Mapping[str, int]
"""What a map may hold: path of a field (``"beam.widths"``) to the most entries of its array or map, 0 for a scalar.

``""`` is the map itself, ``"labels.*"`` stands for every key of ``labels``; a path that is not here is ignored.
"""

MAX_JSON_NESTING = 16
"""A request needs three; the rest is room for fields of later versions. (In msgpack unknown fields are never built.)"""

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]+|\\.)*+"?|[\[\]{}]', re.DOTALL)
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def codec_of(value: bytes) -> Codec:
    """A value that begins with ``{`` is JSON; no msgpack map begins with that byte."""
    return "json" if value[:1] == b"{" else "msgpack"


def read_map(value: bytes, shape: Shape, fields: dict[str, Any]) -> None:
    """Read the map ``value`` into ``fields``; on an error ``fields`` holds what was read before it.

    JSON and msgpack give the same types, except that JSON has no bytes. Raises ``RequestError``.
    """
    if codec_of(value) == "json":
        _read_json(value, fields)
        _check_sizes(fields, "", shape, shape[""])
    else:
        _MsgpackReader(value, shape).read_into(fields)


def write_map(fields: Mapping[str, Any], codec: Codec) -> bytes:
    """Encode a map of plain values. In JSON, NaN and the infinities become ``null``."""
    if codec == "json":
        return msgspec.json.encode(fields)
    packed: bytes = msgpack.packb(fields)
    return packed


def _bad(message: str) -> RequestError:
    return RequestError("bad_request", message)


def _path(parent: str, key: str) -> str:
    return f"{parent}.{key}" if parent else key


def _most(shape: Shape, parent: str, path: str) -> int | None:
    most = shape.get(path)
    return shape.get(f"{parent}.*") if most is None else most


def _check_size(path: str, size: int, most: int) -> None:
    if most == 0:
        raise _bad(f"{path}: an array or a map is not allowed here")
    if size > most:
        raise RequestError("too_large", f"{path or 'the value'}: {size} entries, at most {most} are allowed")


class _MsgpackReader:
    """Opens containers itself and leaves scalars to msgpack, which would allocate an array at its declared length."""

    def __init__(self, value: bytes, shape: Shape) -> None:
        self._value = value
        self._shape = shape
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(len(value), 1), max_array_len=0, max_map_len=0, max_ext_len=0
        )
        self._unpacker.feed(value)

    def read_into(self, fields: dict[str, Any]) -> None:
        if not _is_map(self._next_byte()):
            raise _bad("the value is not a map")
        try:
            self._read_entries(fields, "", self._shape[""])
        except msgpack.OutOfData:
            raise _bad("the value is truncated") from None
        except msgpack.StackError:
            raise _bad("the value is nested too deep") from None
        except ValueError as error:
            raise _bad(f"the value is not valid msgpack: {error or 'unknown type'}") from None
        if left := len(self._value) - self._unpacker.tell():
            raise _bad(f"{left} bytes follow the value")

    def _read_entries(self, entries: dict[str, Any], parent: str, most: int) -> None:
        unpacker, seen = self._unpacker, set[str]()
        for _ in range(self._open(unpacker.read_map_header(), parent, most)):
            key = unpacker.unpack()
            if type(key) is not str:
                raise _bad(f"{parent or 'the value'}: a key is not a string")
            path = _path(parent, key)
            if key in seen:
                raise _bad(f"{path}: given twice")
            seen.add(key)
            known = _most(self._shape, parent, path)
            if known is None:
                unpacker.skip()
            else:
                entries[key] = self._read_value(path, known)

    def _read_value(self, path: str, most: int) -> Any:
        unpacker, first = self._unpacker, self._next_byte()
        if _is_array(first):
            size = self._open(unpacker.read_array_header(), path, most)
            try:
                elements = list(islice(unpacker, size))
            except ValueError as error:
                raise _bad(f"{path}: not an array of plain values: {error}") from None
            if len(elements) < size:
                raise msgpack.OutOfData
            return elements
        if _is_map(first):
            entries: dict[str, Any] = {}
            self._read_entries(entries, path, most)
            return entries
        if _is_extension(first):
            raise _bad(f"{path}: extension types are not allowed")
        return unpacker.unpack()

    def _next_byte(self) -> int:
        at: int = self._unpacker.tell()
        if at >= len(self._value):
            raise _bad("the value is truncated")
        return self._value[at]

    def _open(self, size: int, path: str, most: int) -> int:
        if size > len(self._value) - self._unpacker.tell():
            raise msgpack.OutOfData
        _check_size(path, size, most)
        return size


def _is_map(first: int) -> bool:
    return first & 0xF0 == 0x80 or first in (0xDE, 0xDF)


def _is_array(first: int) -> bool:
    return first & 0xF0 == 0x90 or first in (0xDC, 0xDD)


def _is_extension(first: int) -> bool:
    return 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8


def _read_json(value: bytes, fields: dict[str, Any]) -> None:
    """The standard library's reader, because it shows repeated keys."""
    _check_json_nesting(value)
    repeated: list[str] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key, content in pairs:
            if key in entries:
                repeated.append(key)
            entries[key] = content
        return entries

    try:
        parsed = json.loads(value.decode("utf-8"), object_pairs_hook=build, parse_constant=_refuse_constant)
        if _SURROGATE.search(value):
            msgspec.json.encode(parsed)  # a lone surrogate is no text: it could not be echoed
    except ValueError as error:
        raise _bad(f"the value is not valid JSON: {error}") from None
    fields.update(parsed)
    if repeated:
        raise _bad(f"{repeated[0]}: given twice")


def _check_json_nesting(value: bytes) -> None:
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(value):  # an open string matches too: linear time on any input
        depth += _STEP.get(value[token.start()], 0)
        if depth > MAX_JSON_NESTING:
            raise _bad(f"the value is nested deeper than {MAX_JSON_NESTING}")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _check_sizes(entries: Mapping[str, Any], parent: str, shape: Shape, most: int) -> None:
    _check_size(parent, len(entries), most)
    for key, content in entries.items():
        path = _path(parent, key)
        allowed = _most(shape, parent, path)
        if allowed is None:
            continue
        if isinstance(content, dict):
            _check_sizes(content, path, shape, allowed)
        elif isinstance(content, list):
            _check_size(path, len(content), allowed)
