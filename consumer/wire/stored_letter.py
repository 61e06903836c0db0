"""Dead letters read back: what they say about the record, and the headers that it is sent again with."""

import re
from dataclasses import dataclass
from typing import Self

from consumer.wire.dead_letter import PREFIX, SourceRecord, attempt_of
from consumer.wire.headers import MAX_PARTITION, Headers, is_topic

_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the record stood when it could not be served; ``timestamp_ms`` is epoch milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A record of the dead-letter topic. ``origin`` is none if it does not say where it came from."""

    record: SourceRecord
    error_class: str
    message: str
    stage: str
    group: str
    attempt: int
    truncated: bool
    headers_dropped: bool
    origin: Origin | None

    @classmethod
    def of(cls, record: SourceRecord) -> Self:
        """Read the ``dlq.*`` headers; never raises."""
        found = {name: content or b"" for name, content in record.headers if name.startswith(PREFIX)}

        def text(name: str) -> str:
            return found.get(PREFIX + name, b"").decode("utf-8", "replace")

        return cls(
            record,
            error_class=text("error.class"),
            message=text("error.message") or record.fault or "",
            stage=text("error.stage"),
            group=text("consumer.group"),
            attempt=attempt_of(record.headers),
            truncated=PREFIX + "truncated" in found,
            headers_dropped=PREFIX + "headers.dropped" in found,
            origin=_origin(*(text(f"original.{name}") for name in ("topic", "partition", "offset", "timestamp"))),
        )

    @property
    def at(self) -> str:
        """Its place in the dead-letter topic, ``partition:offset``."""
        return f"{self.record.partition}:{self.record.offset}"

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be sent back as it was, none if it can."""
        if self.origin is None:
            return "it does not say where it came from"
        if self.truncated:
            return "its value was cut or its key dropped"
        return "headers of it were left out" if self.headers_dropped else None

    def replay_headers(self) -> Headers:
        """The original headers, and which attempt this is; nothing else of an earlier one goes along."""
        original = [(name, content) for name, content in self.record.headers if not name.startswith(PREFIX)]
        return [*original, (PREFIX + "attempt", str(self.attempt + 1).encode())]


def _origin(topic: str, *numbers: str) -> Origin | None:
    if not is_topic(topic) or not all(_NUMBER.fullmatch(number) for number in numbers):
        return None
    partition, offset, timestamp_ms = map(int, numbers)
    if partition > MAX_PARTITION:
        return None
    return Origin(topic, partition, offset, timestamp_ms)
