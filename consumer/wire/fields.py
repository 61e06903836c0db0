"""The fields of a request as the protocol types them, and a request that was found valid."""

from math import isinf
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from consumer.wire.errors import Codec
from engine.request import NO_ITEMS, ItemIds, Score

VERSION = 1
MAX_REQUEST_ID = 128
MAX_USER_ID = 256
MAX_MESSAGE = 256
MAX_LABELS = 16
MAX_WIDTHS = 16
MAX_FIELDS = 256
"""Entries of the request's own map, known or not."""

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1)]


class Beam(msgspec.Struct, frozen=True, kw_only=True):
    """``width`` for every level, or one of ``widths`` per level; ``margin`` drops beams, never under ``min_width``."""

    width: Count | None = None
    widths: Annotated[tuple[Count, ...], Meta(min_length=1)] | None = None
    margin: Annotated[float, Meta(ge=0)] | None = None
    min_width: Count | None = None

    def __post_init__(self) -> None:
        if (self.width is None) == (self.widths is None):
            raise ValueError("give either width or widths")
        if self.margin is not None and isinf(self.margin):
            raise ValueError("margin must be finite")
        if self.margin is None and self.min_width is not None:
            raise ValueError("min_width needs margin")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Tag names; an empty ``any`` could match nothing and is refused."""

    any: Annotated[tuple[Name, ...], Meta(min_length=1)] | None = None
    all: tuple[Name, ...] = ()
    none: tuple[Name, ...] = ()


class RequestFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that msgspec checks. Item ids and tokens become arrays and are checked apart."""

    request_id: Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID)]
    user_id: Annotated[str, Meta(max_length=MAX_USER_ID)] | None = None
    template: Name | None = None
    context: dict[str, Int64 | str] = {}
    top_k: Count | None = None
    beam: Beam | None = None
    score: Score | None = None
    max_items_per_sid: Count | None = None
    exclude_history: bool = False
    filter: Filter | None = None
    deadline_ms: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    catalog: Name | None = None
    return_sids: bool = False
    return_fields: tuple[Name, ...] = ()
    labels: dict[str, str] = {}
    type: str = "recall"
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    explain: bool = False


class WireRequest(RequestFields, frozen=True, kw_only=True, eq=False, gc=False):
    """One valid request as it was sent; a field that is ``None`` takes its default from the settings.

    ``history`` and ``append``: int64 ``[n]`` or strings, oldest first; ``tokens``: int32 ``[n]``. At most one of the
    three is given, and without ``history`` and ``tokens`` a ``user_id``.
    ``exclude``: int64 ``[n]`` or strings. ``user_id``: the record's key where the request names none.
    """

    codec: ClassVar[Codec] = "msgpack"

    v: int | None = None
    history: ItemIds | None = None
    append: ItemIds | None = None
    tokens: NDArray[np.int32] | None = None
    exclude: ItemIds = NO_ITEMS


class JsonRequest(WireRequest, frozen=True, kw_only=True, eq=False, gc=False):
    """The same, to be answered in JSON."""

    codec: ClassVar[Codec] = "json"
