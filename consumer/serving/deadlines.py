"""When an answer becomes worthless, and which waiting requests have come to that point."""

import heapq
from collections import deque
from collections.abc import Collection

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
        after_ms = default_ms if asked_ms is None else asked_ms - timestamp_ms
        left_ms = timestamp_ms + (after_ms if after_ms < maximum_ms else maximum_ms) - self.wall_ms
        return self.monotonic + (left_ms if left_ms < maximum_ms else maximum_ms) / 1000


class Deadline:
    """A budget that several steps share: ``seconds`` from the moment it is made."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._at = now + seconds

    def left(self, now: float, *, keep: float = 0.0) -> float:
        """Seconds that remain, never negative; ``keep``: a share of the whole that is left to a later step."""
        return max(0.0, self._at - keep * self._seconds - now)


class DeadlineHeap:
    """Deadlines of keys, the nearest first. ``live``: keys that still wait; the others are dropped lazily, but never
    outnumber those for long.

    Most come in the order of their deadlines: they stand in a queue. A heap has the rest.
    """

    def __init__(self, live: Collection[int]) -> None:
        self._live = live
        self._queue: deque[tuple[float, int]] = deque()
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._heap)

    def add(self, come: list[tuple[float, int]]) -> None:
        """Deadlines and keys that are live."""
        queue = self._queue
        come = sorted(come)
        if come and (not queue or come[0] > queue[-1]):
            queue += come
            return
        for each in come:
            if each > queue[-1]:
                queue.append(each)
            else:
                heapq.heappush(self._heap, each)

    def trim(self) -> None:
        """Some of them are no longer live."""
        if len(self) > 2 * len(self._live) + _SLACK:
            self._queue = deque([each for each in self._queue if each[1] in self._live])
            self._heap = [each for each in self._heap if each[1] in self._live]
            heapq.heapify(self._heap)

    def tightest(self) -> tuple[float, int] | None:
        """The nearest deadline and its key."""
        live, queue, heap = self._live, self._queue, self._heap
        while queue and queue[0][1] not in live:
            queue.popleft()
        while heap and heap[0][1] not in live:
            heapq.heappop(heap)
        if not heap:
            return queue[0] if queue else None
        return min(heap[0], queue[0]) if queue else heap[0]
