"""The quick way from bytes to a request, for the msgpack that clients write: everything is checked in C.

What it does not take (JSON, unknown fields, more than 15 of them, whatever is wrong) it leaves to the careful reader of
``request.py``, which takes it or says what is wrong. It takes nothing that the careful one would not take alike.
"""

from types import GenericAlias
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import force_setattr

from consumer.wire.arrays import read_item_ids, read_tokens
from consumer.wire.fields import MAX_LABELS, MAX_WIDTHS, Beam, Count, Filter, Int64, WireRequest
from consumer.wire.settings import WireLimits
from engine.errors import RequestError
from engine.request import NO_ITEMS

_MAPS = ("beam", "filter", "labels", "context")
_NIL = 0xC0

S = TypeVar("S", bound=msgspec.Struct)


class QuickReader:
    """For one set of limits."""

    def __init__(self, limits: WireLimits) -> None:
        self._bytes, self._string = limits.max_value_bytes, limits.max_string
        self._history, self._tokens, self._exclude = limits.max_history, limits.max_tokens, limits.max_exclude
        self._typed = msgspec.msgpack.Decoder(_typed(limits))
        self._entries = msgspec.msgpack.Decoder(dict[str, Raw])

    def read(self, value: bytes) -> WireRequest | None:
        """None: not for this reader."""
        if not 0x80 <= value[0] <= 0x8F or len(value) > self._bytes:
            return None
        try:
            wire = self._typed.decode(value)
            entries = self._entries.decode(value)
            if len(entries) != value[0] & 0x0F:
                return None
            for name in _MAPS:
                if name in entries and not self._repeats_nothing(entries[name]):
                    return None
            history, tokens = wire.history, wire.tokens
            if (history is None) == (tokens is None) or wire.explain or (wire.exclude_history and history is None):
                return None
            if history is not None:
                force_setattr(wire, "history", read_item_ids("history", history, self._history, self._string))
            else:
                force_setattr(wire, "tokens", read_tokens("tokens", tokens, self._tokens))
            if wire.exclude is not NO_ITEMS:
                exclude = read_item_ids("exclude", wire.exclude, self._exclude, self._string)
                force_setattr(wire, "exclude", exclude)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, RequestError):
            return None
        return wire

    def _repeats_nothing(self, content: Raw) -> bool:
        first = memoryview(content)[0]
        if first == _NIL:
            return True
        return first & 0xF0 == 0x80 and len(self._entries.decode(content)) == first & 0x0F


def _typed(limits: WireLimits) -> type[WireRequest]:
    """A request with the limits in its types, its arrays as they came. A size is checked before it is allocated."""
    text, name = _text(0, limits.max_string), _text(1, limits.max_string)
    item, token = Int64 | text, Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
    widths, tags, some_tags = (
        _tuple(Count, 1, MAX_WIDTHS),
        _tuple(name, 0, limits.max_tags),
        _tuple(name, 1, limits.max_tags),
    )
    return _with(
        WireRequest,
        v=(Literal[1] | None, None),
        history=(bytes | _list(item, limits.max_history) | None, None),
        tokens=(bytes | _list(token, limits.max_tokens) | None, None),
        exclude=(_list(item, limits.max_exclude), NO_ITEMS),
        template=(name | None, None),
        catalog=(name | None, None),
        context=(_dict(text, item, limits.max_context), {}),
        labels=(_dict(text, text, MAX_LABELS), {}),
        return_fields=(_tuple(name, 0, limits.max_fields), ()),
        beam=(_with(Beam, widths=(widths | None, None)) | None, None),
        filter=(_with(Filter, any=(some_tags | None, None), all=(tags, ()), none=(tags, ())) | None, None),
        type=(Literal["recall"], "recall"),
        priority=(Literal[5], 5),
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
