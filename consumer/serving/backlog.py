"""All requests that wait: by arrival, urgency, deadline and run, and what they ask of the engine together. Pure."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic

from consumer.serving.cost_model import WorkSum
from consumer.serving.deadlines import DeadlineHeap
from consumer.serving.order import T, UrgencyOrder, Waiting
from engine.request import Score


class Backlog(Generic[T]):
    """``order``: the most urgent first; ``work``: by score mode; ``tokens``: context tokens of all."""

    def __init__(self) -> None:
        self.order: UrgencyOrder[T] = UrgencyOrder()
        self.work: dict[Score, WorkSum] = {}
        self.tokens = 0
        self._arrivals: dict[int, Waiting[T]] = {}
        self._deadlines = DeadlineHeap()
        self._runs: dict[Hashable, dict[int, Waiting[T]]] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    def __iter__(self) -> Iterator[Waiting[T]]:
        """The oldest first."""
        return iter(self._arrivals.values())

    def add(self, waiting: Waiting[T], alone: float) -> None:
        """``alone``: seconds that it would take by itself."""
        item, key, mode = waiting.item, waiting.key, waiting.mode
        self._arrivals[key] = waiting
        self.order.add(waiting, alone)
        self._deadlines.add(key, item.deadline)
        if item.run_key is not None:
            self._runs.setdefault(item.run_key, {})[key] = waiting
        if mode not in self.work:
            self.work[mode] = WorkSum()
        self.work[mode].add(waiting.whole.work)
        self.tokens += item.tokens

    def run_of(self, waiting: Waiting[T]) -> Sequence[Waiting[T]]:
        """Those that may share its run, itself among them, oldest first."""
        key = waiting.item.run_key
        return (waiting,) if key is None else tuple(self._runs[key].values())

    def tightest(self) -> float | None:
        """The nearest deadline."""
        tightest = self._deadlines.tightest()
        return tightest[0] if tightest else None

    def expired(self, now: float) -> list[Waiting[T]]:
        """Remove and return those whose deadline has passed."""
        expired: list[Waiting[T]] = []
        while (tightest := self._deadlines.tightest()) and tightest[0] <= now:
            waiting = self._arrivals[tightest[1]]
            self.remove([waiting])
            expired.append(waiting)
        return expired

    def remove(self, gone: list[Waiting[T]]) -> None:
        for waiting in gone:
            item, key = waiting.item, waiting.key
            del self._arrivals[key]
            self.work[waiting.mode].subtract(waiting.whole.work)
            self.tokens -= item.tokens
            if item.run_key is not None:
                run = self._runs[item.run_key]
                del run[key]
                if not run:
                    del self._runs[item.run_key]
        self.order.remove(gone)
        self._deadlines.discard([waiting.key for waiting in gone])
        if not self._arrivals:
            self.work.clear()  # and with it what rounding has left there
