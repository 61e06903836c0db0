"""Gathers admitted requests into micro-batches. Pure: the caller brings the time and the lock."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from consumer.serving.deadlines import DeadlineHeap
from consumer.serving.observer import CloseReason
from consumer.serving.settings import BatchSettings

_SMOOTHING = 0.2


class Queued(Protocol):
    """A request as the batcher sees it: context ``tokens``, and its times in seconds on the monotonic clock."""

    @property
    def tokens(self) -> int: ...
    @property
    def admitted(self) -> float: ...
    @property
    def deadline(self) -> float: ...


T = TypeVar("T", bound=Queued)


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """Requests that go to the engine together, oldest first."""

    items: tuple[T, ...]
    tokens: int
    reason: CloseReason


class EngineTime:
    """Running mean of the seconds that a batch takes in the engine."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.seconds += (seconds - self.seconds) * (_SMOOTHING if self.seconds else 1.0)


class Batcher(Generic[T]):
    """First in, first out. The window is anchored at the oldest waiting request, not at the batch before it."""

    def __init__(self, settings: BatchSettings, engine_time: EngineTime) -> None:
        self._settings = settings
        self._engine_time = engine_time
        self._queue: dict[int, T] = {}
        self._deadlines = DeadlineHeap()
        self._keys = itertools.count()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """A batch is due that no waiting can make larger."""
        return len(self._queue) >= self._settings.max_requests or self.tokens >= self._settings.max_tokens

    def add(self, item: T) -> None:
        key = next(self._keys)
        self._queue[key] = item
        self._deadlines.add(key, item.deadline)
        self.tokens += item.tokens

    def take(self, now: float, *, idle: bool) -> Batch[T] | None:
        """The next batch if it is due. ``idle``: the engine has nothing to do, so waiting would gain nothing."""
        reason = self._due(now, idle)
        if reason is None:
            return None
        keys: list[int] = []
        tokens, most = 0, self._settings.max_tokens
        for key, item in islice(self._queue.items(), self._settings.max_requests):
            if keys and tokens + item.tokens > most:
                break
            keys.append(key)
            tokens += item.tokens
        return Batch(tuple(self._remove(keys)), tokens, reason)

    def due_in(self, now: float) -> float | None:
        """Seconds until the next batch is due by its window or a deadline; None while nothing waits."""
        if not self._queue:
            return None
        return max(0.0, min(self._window_end(), self._latest_start()) - now)

    def expire(self, now: float) -> list[T]:
        """Remove and return every request whose deadline has passed."""
        expired: list[T] = []
        while (tightest := self._deadlines.tightest()) and tightest[0] <= now:
            expired += self._remove([tightest[1]])
        return expired

    def next_deadline(self) -> float | None:
        """The tightest deadline of a waiting request."""
        tightest = self._deadlines.tightest()
        return tightest[0] if tightest else None

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the waiting requests that ``unwanted`` picks."""
        return self._remove([key for key, item in self._queue.items() if unwanted(item)])

    def _due(self, now: float, idle: bool) -> CloseReason | None:
        if not self._queue:
            return None
        if len(self._queue) >= self._settings.max_requests:
            return "requests"
        if self.tokens >= self._settings.max_tokens:
            return "tokens"
        if idle:
            return "idle"
        if now >= self._window_end():
            return "window"
        return "deadline" if now >= self._latest_start() else None

    def _window_end(self) -> float:
        return next(iter(self._queue.values())).admitted + self._settings.window_ms / 1000

    def _latest_start(self) -> float:
        """When the engine must start to meet the tightest deadline."""
        tightest = self.next_deadline()
        return float("inf") if tightest is None else tightest - self._engine_time.seconds

    def _remove(self, keys: Sequence[int]) -> list[T]:
        removed = [self._queue.pop(key) for key in keys]
        self._deadlines.discard(keys)
        self.tokens -= sum([item.tokens for item in removed])
        return removed
