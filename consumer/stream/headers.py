"""The headers of a record that was read."""

from operator import methodcaller
from typing import Final, cast

from confluent_kafka import Message

from consumer.wire.headers import Headers

_headers: Final = methodcaller("headers")
"""``message.headers()`` as a checked call. If a name is not UTF-8 the client returns a broken list and leaves the error
set: the interpreter turns that into ``SystemError`` here, but not in a method call that it has specialised."""


def headers_of(message: Message) -> Headers | None:
    """None if a name is not UTF-8: the client then gives none of them. To be called once for each message."""
    try:
        return cast(Headers, _headers(message) or ())
    except SystemError:
        return None
