"""Dead letters: the original record, and headers that say why it could not be served."""

from dataclasses import dataclass

import msgspec

from consumer.wire.headers import Headers, header_size, record_size

PREFIX = "dlq."
MAX_MESSAGE_BYTES = 512
_NAME_BYTES = 128
_ERROR_CLASS = "dlq.error.class"
_ATTEMPT = "dlq.attempt"
_TRUNCATED = ("dlq.truncated", b"true")
_HEADERS_DROPPED = ("dlq.headers.dropped", b"true")


class SourceRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as it was read. ``timestamp_ms`` is epoch milliseconds; ``headers`` are empty if not readable.

    ``fault``: why nothing of it but its place could be read.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    headers_readable: bool = True
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What to produce to the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def dead_letter(
    record: SourceRecord, *, error_class: str, message: str, stage: str, group: str, max_bytes: int
) -> DeadLetter:
    """Build the dead letter of ``record`` so that key, value and headers stay within ``max_bytes``.

    The value goes along byte for byte, and the original headers as long as they fit: ``dlq.headers.dropped`` says that
    some do not. Only a value that does not fit beside the ``dlq.*`` headers is cut, and ``dlq.truncated`` set, as it is
    for a record that could not be read. Those of an earlier dead letter are replaced. ``dlq.attempt`` is the attempt
    that failed: the one that a replay's header names, else the first.
    """
    headers: list[tuple[str, bytes | None]] = [
        (_ERROR_CLASS, _text(error_class, _NAME_BYTES)),
        ("dlq.error.message", _text(message, MAX_MESSAGE_BYTES)),
        ("dlq.error.stage", _text(stage, _NAME_BYTES)),
        ("dlq.original.topic", record.topic.encode()),
        ("dlq.original.partition", str(record.partition).encode()),
        ("dlq.original.offset", str(record.offset).encode()),
        ("dlq.original.timestamp", str(record.timestamp_ms).encode()),
        ("dlq.consumer.group", group.encode()),
        (_ATTEMPT, str(_failed_attempt(record.headers)).encode()),
    ]
    if record.fault is not None:
        return DeadLetter(None, None, [*headers, _TRUNCATED])
    key, value = record.key, record.value
    original = [(name, content) for name, content in record.headers if not name.startswith(PREFIX)]
    if record_size(key, value, [*headers, *original]) <= max_bytes:
        return DeadLetter(key, value, headers + original)
    marked = [*headers, _HEADERS_DROPPED]  # the longer mark: there is room for either
    if original and record_size(key, value, marked) <= max_bytes:
        headers.append(_HEADERS_DROPPED)
    else:
        headers.append(_TRUNCATED)
        if record_size(key, None, marked) > max_bytes:
            key = None
        value = (value or b"")[: max(0, max_bytes - record_size(key, None, marked))]
    room = max_bytes - record_size(key, value, headers)
    for name, content in original:
        size = header_size(name, content)
        if size <= room:
            headers.append((name, content))
            room -= size
    return DeadLetter(key, value, headers)


def attempt_of(headers: Headers) -> int:
    """What ``dlq.attempt`` says: the attempt that failed, or in a replay the one that it is; 1 without."""
    text = dict(headers).get(_ATTEMPT) or b""
    return max(1, int(text)) if text.isdigit() and len(text) <= 9 else 1


def _failed_attempt(headers: Headers) -> int:
    copied = any(name == _ERROR_CLASS for name, _ in headers)  # a dead letter that came back with all its headers
    return attempt_of(headers) + copied


def _text(message: str, most: int) -> bytes:
    """UTF-8 of at most ``most`` bytes, cut between characters."""
    return message.encode("utf-8", "replace")[:most].decode("utf-8", "ignore").encode()
