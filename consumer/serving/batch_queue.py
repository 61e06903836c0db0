"""The batcher between threads: intake adds and sweeps, the device thread waits for the next batch."""

import threading
from collections.abc import Callable, Sequence

from consumer.serving.batch import Batch, TurnedAway
from consumer.serving.batcher import Batcher
from consumer.serving.cost_model import UNKNOWN, CostModel
from consumer.serving.errands import Errand, Errands
from consumer.serving.in_flight import InFlight
from consumer.serving.load_settings import LoadSettings
from consumer.serving.settings import BatchSettings

_DONE_POLL_S = 0.00025


class BatchQueue:
    """``expired`` is called with every request that waited past its deadline, from whichever thread noticed, and
    ``turned_away`` with those that cannot be answered in time.

    An errand that waits goes before the next batch and changes nothing about it.
    """

    def __init__(
        self,
        settings: BatchSettings,
        clock: Callable[[], float],
        expired: Callable[[Sequence[InFlight]], None],
        errands: Errands,
        *,
        load: LoadSettings | None = None,
        costs: CostModel | None = None,
        turned_away: Callable[[Sequence[TurnedAway[InFlight]]], None] = lambda _: None,
    ) -> None:
        self.costs = costs or CostModel(UNKNOWN)
        self._batcher: Batcher[InFlight] = Batcher(settings, load or LoadSettings(), self.costs)
        self._turned_away = turned_away
        self._clock = clock
        self._expired = expired
        self._changed = threading.Condition()
        self._closed = False
        self._errands = errands
        errands.on_arrival(self._wake)

    def __len__(self) -> int:
        return len(self._batcher)

    @property
    def tokens(self) -> int:
        """Context tokens that wait."""
        with self._changed:
            return self._batcher.tokens

    @property
    def step(self) -> int:
        """How far down the ladder the last batch was made."""
        return self._batcher.step

    def busy_until(self, moment: float) -> None:
        """The engine will have done what it has by then, as predicted."""
        with self._changed:
            self._batcher.busy_until = moment

    def add(self, items: Sequence[InFlight]) -> None:
        """Queue requests that were read together, so that an idle engine takes them together."""
        with self._changed:
            self._batcher.add(items)
            now = self._clock()
            self._drop_late(now)
            self._batcher.relieve(now)
            self._dismiss()
            self._changed.notify()

    def next(self, *, idle: bool) -> Batch[InFlight] | Errand | None:
        """Wait for the next batch or errand; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                if errand := self._errands.take():
                    return errand
                now = self._clock()
                self._drop_late(now)
                batch = self._batcher.take(now, idle=idle)
                self._dismiss()
                if batch:
                    return batch
                self._changed.wait(self._batcher.due_in(now))
            return None

    def next_beside(self, until: float, done: Callable[[], bool]) -> Batch[InFlight] | Errand | None:
        """The batch after the one that runs: a full one at once, from ``until`` on any; an errand at once.

        None once the running one is ``done``, and once the queue is closed.
        """
        with self._changed:
            while not self._closed and not done():
                if errand := self._errands.take():
                    return errand
                now = self._clock()
                self._drop_late(now)
                if self._batcher.full or now >= until:
                    batch = self._batcher.take(now, idle=True)
                    self._dismiss()
                    if batch:
                        return batch
                self._changed.wait(_DONE_POLL_S)
            return None

    def sweep(self) -> float | None:
        """Drop what has expired. Returns the tightest deadline that is left."""
        with self._changed:
            self._drop_late(self._clock())
            return self._batcher.next_deadline()

    def remove(self, unwanted: Callable[[InFlight], bool]) -> list[InFlight]:
        """Remove and return the waiting requests that ``unwanted`` picks."""
        with self._changed:
            return self._batcher.remove(unwanted)

    def close(self) -> None:
        """Let the device thread end; what still waits is not served."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _drop_late(self, now: float) -> None:
        if late := self._batcher.expire(now):
            self._expired(late)

    def _dismiss(self) -> None:
        if gone := self._batcher.turned_away():
            self._turned_away(gone)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
