"""All requests that wait: by arrival, urgency, deadline and run, and what they ask of the engine together. Pure."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic

from consumer.serving.cost_model import Work, WorkSum
from consumer.serving.deadlines import DeadlineHeap
from consumer.serving.order import T, UrgencyOrder, Waiting
from engine.request import Score


class Backlog(Generic[T]):
    """``order``: the most urgent first; ``work``: by score mode."""

    def __init__(self) -> None:
        self.order: UrgencyOrder[T] = UrgencyOrder()
        self.work: dict[Score, WorkSum] = {}
        self._arrivals: dict[int, Waiting[T]] = {}
        self._deadlines = DeadlineHeap(self._arrivals)
        self._runs: dict[Hashable, dict[int, Waiting[T]]] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    def __iter__(self) -> Iterator[Waiting[T]]:
        """The oldest first."""
        return iter(self._arrivals.values())

    @property
    def tokens(self) -> int:
        """Context tokens of all."""
        return int(sum([work.tokens for work in self.work.values()]))

    @property
    def shares(self) -> bool:
        """Some may share a run."""
        return bool(self._runs)

    @property
    def plain(self) -> bool:
        """All are of one score mode, and none may share a run."""
        return len(self.work) == 1 and not self._runs

    def add(self, come: list[Waiting[T]]) -> None:
        """What was read together, in the order of ``key``."""
        deadlines: list[tuple[float, int]] = []
        for waiting in come:
            item, key = waiting.item, waiting.key
            self._arrivals[key] = waiting
            deadlines.append((item.deadline, key))
            if item.run_key is not None:
                self._runs.setdefault(item.run_key, {})[key] = waiting
        self.order.add(come)
        self._deadlines.add(deadlines)
        for mode, work in _works(come):
            if mode not in self.work:
                self.work[mode] = WorkSum()
            self.work[mode].add(work)

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

    def remove(self, gone: list[Waiting[T]], work: Work | None = None) -> None:
        """``work``: of all these, where they are of one score mode and it is known."""
        arrivals = self._arrivals
        for waiting in gone:
            del arrivals[waiting.key]
        for waiting in gone if self._runs else ():
            if (run_key := waiting.item.run_key) is not None:
                run = self._runs[run_key]
                del run[waiting.key]
                if not run:
                    del self._runs[run_key]
        for mode, part in _works(gone) if work is None else [(gone[0].request.score, work)]:
            self.work[mode].subtract(part)
        self.order.remove(gone)
        self._deadlines.trim()
        if not arrivals:
            self.work.clear()  # and with it what rounding has left there


def _works(some: list[Waiting[T]]) -> list[tuple[Score, Work]]:
    """What they ask of the engine, by score mode."""
    modes = {waiting.request.score for waiting in some}
    if len(modes) == 1:
        return [(modes.pop(), Work.total([waiting.work for waiting in some]))]
    return [(mode, Work.total([each.work for each in some if each.request.score == mode])) for mode in modes]
