"""Which dead letters are meant: by place, class, stage, topic and time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from consumer.wire.stored_letter import StoredLetter

_PLACE = re.compile(r"(?:(\d{1,9}):)?(\d{1,18})(?:-(\d{1,18}))?")
_AGO = re.compile(r"(\d{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Places:
    """Offsets ``first`` to ``last`` of one partition of the dead-letter topic, both included."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Selection:
    """All that is given must hold; ``topic`` is the original one, times are epoch milliseconds of the dead letter."""

    places: tuple[Places, ...] = ()
    error_class: str | None = None
    stage: str | None = None
    topic: str | None = None
    since_ms: float | None = None
    until_ms: float | None = None

    def matches(self, letter: StoredLetter) -> bool:
        record, origin = letter.record, letter.origin
        return (
            self._names(record.partition, record.offset)
            and self.error_class in (None, letter.error_class)
            and self.stage in (None, letter.stage)
            and (self.topic is None or (origin is not None and origin.topic == self.topic))
            and (self.since_ms is None or record.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or record.timestamp_ms < self.until_ms)
        )

    def within(self) -> Mapping[int, tuple[int, int]] | None:
        """Per partition the offsets to be read (first, end), none for all of the topic."""
        if not self.places:
            return None
        spans: dict[int, tuple[int, int]] = {}
        for each in self.places:
            first, end = spans.get(each.partition, (each.first, each.last + 1))
            spans[each.partition] = min(first, each.first), max(end, each.last + 1)
        return spans

    def _names(self, partition: int, offset: int) -> bool:
        return not self.places or any(
            each.partition == partition and each.first <= offset <= each.last for each in self.places
        )


def parse_places(text: str) -> tuple[Places, ...]:
    """``0:17,1:20-40,5``: partition and offset, or a range of them; partition 0 may be left out. Raises ValueError."""
    places = []
    for word in text.split(","):
        found = _PLACE.fullmatch(word.strip())
        if found is None:
            raise ValueError(f"{word.strip()!r} is no place: write PARTITION:OFFSET or PARTITION:FIRST-LAST")
        first = int(found[2])
        places.append(Places(int(found[1] or 0), first, int(found[3] or first)))
    return tuple(places)


def parse_time(text: str, now_ms: float) -> float:
    """``90s``, ``15m``, ``2h``, ``7d`` ago, or an ISO 8601 time (UTC where it has no zone), in epoch milliseconds.

    Raises ValueError.
    """
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time: write 15m, 2h, 7d or 2026-01-31T08:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
