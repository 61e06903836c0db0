"""The quick way from bytes to a request, as clients write it: everything is checked in C.

What it does not take (unknown fields, more than 15 in msgpack, spaces between them in JSON, whatever is wrong) it
leaves to the careful reader of ``request.py``, which takes it or says what is wrong, and reads all else alike.
"""

from types import GenericAlias
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import force_setattr

from consumer.wire.arrays import ID_BYTES, ids_from_binary, read_item_ids, read_tokens
from consumer.wire.events import EventFields, WireEvent, to_event
from consumer.wire.fields import MAX_LABELS, MAX_WIDTHS, Beam, Count, Filter, Int64, JsonRequest, WireRequest
from consumer.wire.settings import WireLimits
from engine.errors import RequestError
from engine.request import NO_ITEMS, ItemIds

_MAPS = frozenset({"beam", "filter", "labels", "context"})
_NIL = 0xC0
_BRACE = ord("{")
_EMPTY_MAP = 0x80
"""The first byte of a map in msgpack says how many entries it has, up to 15."""

PACKED_EVENT = b"\xa4type\xa5event"
"""What an event in msgpack holds, and seldom anything else."""
HEAD = 64
"""Bytes in which a client writes that early."""

S = TypeVar("S", bound=msgspec.Struct)


class _QuickEvent(EventFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Its items in binary: others are for the careful reader."""

    items: bytes
    v: Literal[1] | None = None


class QuickReader:
    """For one set of limits."""

    def __init__(self, limits: WireLimits) -> None:
        self._bytes, self._string = limits.max_value_bytes, limits.max_string
        self._history, self._tokens, self._exclude = limits.max_history, limits.max_tokens, limits.max_exclude
        self._limits = limits
        self._event = msgspec.msgpack.Decoder(_QuickEvent).decode
        self._msgpack = msgspec.msgpack.Decoder(_typed(WireRequest, limits)).decode
        self._json = msgspec.json.Decoder(_typed(JsonRequest, limits)).decode

    def read(self, value: bytes) -> WireRequest | None:
        """None: not for this reader."""
        if len(value) > self._bytes:
            return None
        packed = value[0] != _BRACE
        try:
            wire = self._msgpack(value) if packed else self._json(value)
            history, append, tokens = wire.history, wire.append, wire.tokens
            contexts = (history is not None) + (append is not None) + (tokens is not None)
            if contexts > 1 or wire.explain:
                return None
            if not (packed and contexts + _scalars(wire) == value[0] - _EMPTY_MAP) and _is_repeated(value, packed):
                return None
            if history is not None:
                force_setattr(wire, "history", self._ids("history", history))
            elif append is not None:
                force_setattr(wire, "append", self._ids("append", append))
            elif tokens is not None:
                if wire.exclude_history:
                    return None
                force_setattr(wire, "tokens", read_tokens("tokens", tokens, self._tokens))
            if wire.exclude is not NO_ITEMS:
                exclude = read_item_ids("exclude", wire.exclude, self._exclude, self._string)
                force_setattr(wire, "exclude", exclude)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, RequestError):
            return None
        return wire

    def _ids(self, name: str, content: Any) -> ItemIds:
        """What binary holds has been counted."""
        if type(content) is bytearray:
            return ids_from_binary(content)
        return read_item_ids(name, content, self._history, self._string)

    def read_event(self, value: bytes, user: str | None) -> WireEvent | None:
        """An event in msgpack; ``user``: whom the record's key names. None: not for this reader."""
        if PACKED_EVENT not in value or len(value) > self._bytes:
            return None
        try:
            fields = self._event(value)
            if _msgpack_entries(value) is None:
                return None
            return to_event(fields, fields.items, user, "msgpack", self._limits)
        except (msgspec.MsgspecError, UnicodeDecodeError, RequestError):
            return None


def _scalars(wire: WireRequest) -> int:
    """How many entries of a request in msgpack certainly were there, of those that hold nothing that may repeat itself.

    If these and its context are as many as its map has, none was there twice.
    """
    return (
        1  # its id
        + (wire.v is not None)
        + (wire.user_id is not None)
        + (wire.top_k is not None)
        + (wire.deadline_ms is not None)
        + (wire.template is not None)
        + (wire.catalog is not None)
    )


def _is_repeated(value: bytes, packed: bool) -> bool:
    """Whether a key may stand twice in a map of the request."""
    entries_of = _msgpack_entries if packed else _json_entries
    entries = entries_of(value)
    return entries is None or any(entries_of(bytes(entries[name])) is None for name in _MAPS & entries.keys())


_packed = msgspec.msgpack.Decoder(dict[str, Raw]).decode
_written = msgspec.json.Decoder(dict[str, Raw]).decode


def _msgpack_entries(content: bytes) -> dict[str, Raw] | None:
    """Of a map, or of null. None: a key stands there twice, or there are too many to tell by the first byte."""
    first = content[0]
    if first == _NIL:
        return {}
    if first & 0xF0 != 0x80:
        return None
    entries = _packed(content)
    return entries if len(entries) == first & 0x0F else None


def _json_entries(content: bytes) -> dict[str, Raw] | None:
    """Of a map, or of null. None: a key stands there twice, or there are spaces: it is longer than its entries."""
    if content == b"null":
        return {}
    entries = _written(content)
    size = 1 + max(1, len(entries))  # braces and commas
    for key, entry in entries.items():
        size += len(msgspec.json.encode(key)) + 1 + len(memoryview(entry))
    return entries if len(content) == size else None


def _typed(base: type[WireRequest], limits: WireLimits) -> type[WireRequest]:
    """A request with the limits in its types, its arrays as they came. A size is checked before it is allocated."""
    text, name = _text(0, limits.max_string), _text(1, limits.max_string)
    item, token = Int64 | text, Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
    binary = Annotated[bytearray, Meta(max_length=ID_BYTES * limits.max_history)]  # an array lies in it as it is
    ids = binary | _list(item, limits.max_history)
    widths, tags, some_tags = (
        _tuple(Count, 1, MAX_WIDTHS),
        _tuple(name, 0, limits.max_tags),
        _tuple(name, 1, limits.max_tags),
    )
    return _with(
        base,
        v=(Literal[1] | None, None),
        history=(ids | None, None),
        append=(ids | None, None),
        tokens=(bytearray | _list(token, limits.max_tokens) | None, None),
        exclude=(_list(item, limits.max_exclude), NO_ITEMS),
        template=(name | None, None),
        catalog=(name | None, None),
        context=(_dict(text, item, limits.max_context), {}),
        labels=(_dict(text, text, MAX_LABELS), {}),
        return_fields=(_tuple(name, 0, limits.max_fields), ()),
        beam=(_with(Beam, widths=(widths | None, None)) | None, None),
        filter=(_with(Filter, any=(some_tags | None, None), all=(tags, ()), none=(tags, ())) | None, None),
        type=(Literal["recall"], "recall"),
    )


def _with(base: type[S], **fields: tuple[Any, Any]) -> type[S]:
    """``base`` with other types and defaults, and no field that it does not know."""
    return cast(
        type[S],
        msgspec.defstruct(
            base.__name__,
            [(name, *field) for name, field in fields.items()],
            bases=(base,),
            frozen=True,
            kw_only=True,
            forbid_unknown_fields=True,
            gc=False,
        ),
    )


def _text(least: int, most: int) -> Any:
    return Annotated[str, Meta(min_length=least, max_length=most)]


def _tuple(element: Any, least: int, most: int) -> Any:
    return Annotated[GenericAlias(tuple, (element, ...)), Meta(min_length=least, max_length=most)]


def _list(element: Any, most: int) -> Any:
    return Annotated[GenericAlias(list, element), Meta(max_length=most)]


def _dict(key: Any, content: Any, most: int) -> Any:
    return Annotated[GenericAlias(dict, (key, content)), Meta(max_length=most)]
