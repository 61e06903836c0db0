"""Writing requests: what a client needs to speak the protocol."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from consumer.wire.codec import write_map
from consumer.wire.errors import Codec
from consumer.wire.fields import VERSION
from engine.request import Score

Ids = Sequence[int] | Sequence[str] | NDArray[np.integer[Any]]


class BeamOptions(TypedDict, total=False):
    """``width`` or ``widths`` (one per level); ``margin`` with ``min_width``."""

    width: int
    widths: Sequence[int]
    margin: float
    min_width: int


class FilterOptions(TypedDict, total=False):
    """Tag names that an item must hold: any, all, none of them."""

    any: Sequence[str]
    all: Sequence[str]
    none: Sequence[str]


class RequestOptions(TypedDict, total=False):
    """The optional fields of a request; one that is left out takes the service's default."""

    user_id: str
    history: Ids
    append: Ids
    tokens: Sequence[int] | NDArray[np.integer[Any]]
    template: str
    context: Mapping[str, int | str]
    top_k: int
    beam: BeamOptions
    score: Score
    max_items_per_sid: int
    exclude: Ids
    exclude_history: bool
    filter: FilterOptions
    deadline_ms: int
    priority: int
    catalog: str
    return_sids: bool
    return_fields: Sequence[str]
    labels: Mapping[str, str]


def encode_request(request_id: str, options: RequestOptions, codec: Codec = "msgpack") -> bytes:
    """The value of a request record. In msgpack a history of ints and the tokens travel as binary.

    Raises ``TypeError``, ``OverflowError`` or ``UnicodeEncodeError`` for what cannot be written; the service checks the
    rest.
    """
    fields: dict[str, Any] = {"v": VERSION, "request_id": request_id, **options}
    if not isinstance(fields.get("user_id"), str | None):
        raise TypeError("user_id: must be a string")
    for name in ("history", "append", "exclude"):
        if name in fields:
            fields[name] = _item_ids(name, fields[name])
    if "tokens" in fields:
        fields["tokens"] = _ints("tokens", fields["tokens"], "must be ints")
    if codec == "msgpack":
        for name, little_endian in (("history", "<i8"), ("append", "<i8"), ("tokens", "<i4")):
            if name in fields:
                fields[name] = _packed(fields[name], little_endian)
    return write_map(fields, codec)


def encode_event(user_id: str, items: Ids, *, ts: int | None = None, codec: Codec = "msgpack") -> bytes:
    """The value of an event: the user's new items, oldest first, which happened at ``ts`` (epoch milliseconds).

    Raises as ``encode_request``.
    """
    ids = _item_ids("items", items)
    packed = _packed(ids, "<i8") if codec == "msgpack" else ids
    fields: dict[str, Any] = {"v": VERSION, "type": "event", "user_id": user_id, "items": packed}
    return write_map(fields if ts is None else {**fields, "ts": ts}, codec)


def encode_cancel(user_id: str, request_id: str, codec: Codec = "msgpack") -> bytes:
    """The value of a record that calls a request of the user back."""
    return write_map({"v": VERSION, "type": "cancel", "user_id": user_id, "request_id": request_id}, codec)


def encode_forget(user_id: str, codec: Codec = "msgpack") -> bytes:
    """The value of a record that has everything of the user erased."""
    return write_map({"v": VERSION, "type": "forget", "user_id": user_id}, codec)


def _packed(ids: list[Any], little_endian: str) -> Any:
    return ids if ids and isinstance(ids[0], str) else np.array(ids, little_endian).tobytes()


def _item_ids(name: str, ids: Ids) -> list[Any]:
    if not isinstance(ids, np.ndarray) and set(map(type, ids)) == {str}:
        return list(ids)
    return _ints(name, ids, "item ids must be all ints or all strings")


def _ints(name: str, ids: Ids, rule: str) -> list[int]:
    plain: list[Any] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    try:
        return list(map(index, plain))
    except TypeError:
        raise TypeError(f"{name}: {rule}") from None
