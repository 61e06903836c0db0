"""Request records for the tests of the wire: writing them by hand, and what a decoder gives for them."""

import json
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest

from consumer.wire.errors import Codec, WireError
from consumer.wire.fields import WireRequest
from consumer.wire.request import decode
from consumer.wire.settings import WireLimits

LIMITS = WireLimits()
CODECS: tuple[Codec, ...] = ("msgpack", "json")


def packed(fields: Mapping[Any, Any], codec: Codec = "msgpack") -> bytes:
    """The record's value, with whatever is in ``fields``."""
    if codec == "json":
        return json.dumps(fields).encode()
    value: bytes = msgpack.packb(fields)
    return value


def request(**fields: Any) -> dict[str, Any]:
    """A valid request with ``fields`` over it; ``None`` takes a field away."""
    return {
        name: content
        for name, content in {"request_id": "r", "history": [1, 2], **fields}.items()
        if content is not None
    }


def read(fields: Mapping[Any, Any], codec: Codec = "msgpack", limits: WireLimits = LIMITS) -> WireRequest:
    return decode(packed(fields, codec), key=None, limits=limits)


def refusal(value: bytes | None, limits: WireLimits = LIMITS, key: bytes | None = None) -> WireError:
    """The error that ``value`` is refused with."""
    with pytest.raises(WireError) as caught:
        decode(value, key=key, limits=limits)
    return caught.value
