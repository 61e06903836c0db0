"""When an answer becomes worthless, and which waiting requests have come to that point."""

import heapq
from collections.abc import Iterable

import msgspec

_SLACK = 64


class Moment(msgspec.Struct, frozen=True):
    """One moment on both clocks: ``wall_ms`` milliseconds of the epoch, ``monotonic`` seconds."""

    wall_ms: float
    monotonic: float

    def deadline(self, asked_ms: int | None, timestamp_ms: int, default_ms: int, maximum_ms: int) -> float:
        """When a record is due, on the monotonic clock: as asked, else ``default_ms`` after its timestamp.

        At most ``maximum_ms`` after its timestamp and from now: the producer's clock may be ahead of ours.
        """
        due_ms = timestamp_ms + (default_ms if asked_ms is None else min(asked_ms - timestamp_ms, maximum_ms))
        return self.monotonic + min(due_ms - self.wall_ms, maximum_ms) / 1000


class Deadline:
    """A budget that several steps share: ``seconds`` from the moment it is made."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._at = now + seconds

    def left(self, now: float, *, keep: float = 0.0) -> float:
        """Seconds that remain, never negative; ``keep``: a share of the whole that is left to a later step."""
        return max(0.0, self._at - keep * self._seconds - now)


class DeadlineHeap:
    """Keys by deadline. Entries of keys that left are dropped lazily, but never outnumber the others for long."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._live)

    def add(self, key: int, deadline: float) -> None:
        self._live[key] = deadline
        heapq.heappush(self._heap, (deadline, key))

    def discard(self, keys: Iterable[int]) -> None:
        live = self._live
        for key in keys:
            del live[key]
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [(deadline, key) for key, deadline in self._live.items()]
            heapq.heapify(self._heap)

    def tightest(self) -> tuple[float, int] | None:
        """The nearest deadline and its key."""
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None
