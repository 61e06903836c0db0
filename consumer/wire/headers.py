"""Record headers: whom to answer, how a reply names its request, and what a record weighs for Kafka."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self

import msgspec

Headers = Sequence[tuple[str, bytes | None]]
"""Headers as Kafka has them: ordered, names may repeat, a value may be null."""

CORRELATION_ID = "correlation-id"
REPLY_TOPIC = "reply-topic"
REPLY_PARTITION = "reply-partition"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
SPRING_CORRELATION_ID = "kafka_correlationId"
SPRING_REPLY_TOPIC = "kafka_replyTopic"
SPRING_REPLY_PARTITION = "kafka_replyPartition"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(rb"[\t\x20-\x7e]{1,512}")
_DIGITS = re.compile(rb"[0-9]{1,10}")
MAX_PARTITION = 2**31 - 1

RECORD_OVERHEAD = 128
"""Bytes of a record and its batch beside key, value and headers; Kafka takes 72 to 98 with an empty batch."""
HEADER_OVERHEAD = 10


class RequestHeaders(msgspec.Struct, frozen=True, gc=False):
    """What the service reads from a request's headers. A repeated header counts as its last value.

    ``correlation_name`` is the name under which the correlation id came. ``error`` says what is wrong with a header:
    the request is then answered ``bad_request``, without the malformed part.
    """

    correlation_id: bytes | None = None
    correlation_name: str = CORRELATION_ID
    reply_topic: str | None = None
    reply_partition: int | None = None
    traceparent: bytes | None = None
    error: str | None = None
    tracestate: bytes | None = None
    """None without a ``traceparent``."""

    @classmethod
    def parse(cls, headers: Headers | None) -> Self:
        """Read ``headers``; never raises. Our own names win over Spring's."""
        if not headers:
            return cls()
        if len(headers) == 1:
            name, content = headers[0]
            if name == CORRELATION_ID:
                return cls(content)
        found: Mapping[str, bytes | None] = dict(headers)
        correlation_name = CORRELATION_ID
        correlation_id = found.get(CORRELATION_ID)
        if correlation_id is None and (correlation_id := found.get(SPRING_CORRELATION_ID)) is not None:
            correlation_name = SPRING_CORRELATION_ID
        topic = found.get(REPLY_TOPIC) or found.get(SPRING_REPLY_TOPIC)
        partition, error = _reply_partition(found)
        traceparent, tracestate = found.get(TRACEPARENT), None
        if traceparent is not None:
            traceparent, tracestate = _trace(traceparent, found.get(TRACESTATE))
        return cls(
            correlation_id,
            correlation_name,
            None if topic is None else topic.decode("utf-8", "replace"),
            partition,
            traceparent,
            error,
            tracestate,
        )


UNREADABLE = RequestHeaders(error="headers: a name is not UTF-8")
"""The client gives none of a record's headers if one of their names is no text."""


def _trace(traceparent: bytes, tracestate: bytes | None) -> tuple[bytes | None, bytes | None]:
    """What of a caller's trace can be continued; the state means nothing without the parent."""
    if not _TRACEPARENT.fullmatch(traceparent):
        return None, None
    return traceparent, tracestate if tracestate and _TRACESTATE.fullmatch(tracestate) else None


def _reply_partition(found: Mapping[str, bytes | None]) -> tuple[int | None, str | None]:
    text, spring = found.get(REPLY_PARTITION), found.get(SPRING_REPLY_PARTITION)
    if text is not None:
        if _DIGITS.fullmatch(text) and int(text) <= MAX_PARTITION:
            return int(text), None
        return None, f"header {REPLY_PARTITION}: must be a decimal number from 0 to {MAX_PARTITION}"
    if spring is None:
        return None, None
    partition = int.from_bytes(spring, "big", signed=True)
    if len(spring) == 4 and partition >= 0:
        return partition, None
    return None, f"header {SPRING_REPLY_PARTITION}: must be a 4-byte big-endian int that is not negative"


def reply_topic_allowed(topic: str, allowed: Iterable[str]) -> bool:
    """Whether ``topic`` is a legal Kafka name and one of ``allowed``: exact names, or prefixes that end in ``*``."""
    return is_topic(topic) and any(
        topic.startswith(rule[:-1]) if rule.endswith("*") else topic == rule for rule in allowed
    )


def is_topic(name: str) -> bool:
    """Whether ``name`` is one that Kafka allows."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def reply_headers(
    request: RequestHeaders, topic: str, partition: int, offset: int, catalog: str | None
) -> list[tuple[str, bytes]]:
    """Headers of a reply: the correlation id byte for byte under the name that came, and where the request stood."""
    headers: list[tuple[str, bytes]] = []
    if request.correlation_id is not None:
        headers.append((request.correlation_name, request.correlation_id))
    headers += _place(topic, partition)
    headers.append(("request-offset", b"%d" % offset))
    if request.traceparent is not None:
        headers.append((TRACEPARENT, request.traceparent))
        if request.tracestate is not None:
            headers.append((TRACESTATE, request.tracestate))
    if catalog is not None:
        headers.append(_catalog(catalog))
    return headers


@lru_cache(maxsize=4_096)
def _place(topic: str, partition: int) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    return ("request-topic", topic.encode()), ("request-partition", b"%d" % partition)


@lru_cache(maxsize=64)
def _catalog(version: str) -> tuple[str, bytes]:
    return "catalog", version.encode()


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Upper bound of the bytes that Kafka counts against a topic's limit before compression: headers count too."""
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


def header_size(name: str, content: bytes | None) -> int:
    """Upper bound of one header's bytes."""
    return HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
