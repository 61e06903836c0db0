"""Records that ask for no reply: a user's new items, a request that is no longer wanted, a user to be forgotten."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, final

import msgspec
from msgspec import Meta

from consumer.wire.arrays import binary_of, read_item_ids
from consumer.wire.errors import Codec
from consumer.wire.fields import MAX_REQUEST_ID, MAX_USER_ID
from consumer.wire.settings import WireLimits
from engine.errors import RequestError
from engine.request import NO_ITEMS, ItemIds

EventType = Literal["event", "cancel", "forget"]
EVENT_TYPES: frozenset[str] = frozenset({"event", "cancel", "forget"})

_UserId = Annotated[str, Meta(min_length=1, max_length=MAX_USER_ID)]
_Milliseconds = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class EventFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that msgspec checks; ``ts`` is epoch milliseconds, for whoever reads the topic."""

    type: EventType
    user_id: _UserId | None = None
    request_id: Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID)] | None = None
    ts: _Milliseconds | None = None


@final
class WireEvent(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """A valid one. ``items``: int64 ``[n]`` or strings, of an event; ``cancels``: a request id, of a cancel.

    It is an ``Addressee`` that nothing is addressed to.
    """

    request_id: ClassVar[None] = None
    labels: ClassVar[Mapping[str, str]] = {}
    codec: ClassVar[Codec] = "msgpack"

    type: EventType
    user_id: str
    items: ItemIds = NO_ITEMS
    cancels: str | None = None


def to_event(checked: EventFields, items: Any, user: str | None, codec: Codec, limits: WireLimits) -> WireEvent:
    """``items`` as they came; ``user``: whom the record's key names. Raises ``RequestError``."""
    named = checked.user_id or user
    if not named:
        raise RequestError("bad_request", "user_id: not given, and the record's key names none")
    if checked.type == "cancel" and checked.request_id is None:
        raise RequestError("bad_request", "request_id: required")
    if checked.type != "event":
        return WireEvent(type=checked.type, user_id=named, cancels=checked.request_id)
    if items is None:
        raise RequestError("bad_request", "items: required")
    ids = read_item_ids("items", binary_of("items", items, codec), limits.max_history, limits.max_string)
    return WireEvent(type="event", user_id=named, items=ids)
