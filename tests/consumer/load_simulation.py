"""The serving loop's decisions under load in simulated time: intake bounds, batcher, cost model, two batches in flight.

What is real: ``AdmissionGate``, ``Batcher``, ``CostModel``. What is simulated: the log, the engine's time, the clock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from consumer.serving.admission import AdmissionGate, Flow
from consumer.serving.batch import Batch
from consumer.serving.batcher import Batcher
from consumer.serving.cost_model import UNKNOWN, CostModel, Prior, Work
from consumer.serving.device import BATCHES_IN_ENGINE, GATHERING_SHARE
from consumer.serving.load_settings import LoadSettings
from consumer.serving.settings import BatchSettings
from tests.consumer.queued_item import Item

_TURN_S = 0.01
Truth = Callable[[Work], float]


@dataclass
class Told:
    """What became of the requests."""

    answered: list[tuple[Item, float]] = field(default_factory=list)
    degraded: list[Item] = field(default_factory=list)
    turned_away: list[tuple[Item, bool]] = field(default_factory=list)
    expired: list[Item] = field(default_factory=list)
    late: list[Item] = field(default_factory=list)
    longest_queue: int = 0
    until: float = 0.0

    def goodput(self, since: float = 0.0) -> float:
        """Answers in time a second."""
        return sum(at >= since for _, at in self.answered) / (self.until - since)

    def latencies(self) -> list[float]:
        return sorted(at - item.admitted for item, at in self.answered)


@dataclass
class _Running:
    batch: Batch[Item]
    started: float
    seconds: float


class Simulation:
    """``truth``: seconds of a batch; ``noise``: the spread of its logarithm."""

    def __init__(
        self,
        truth: Truth,
        *,
        noise: float = 0.05,
        load: LoadSettings | None = None,
        prior: Prior = UNKNOWN,
        seed: int = 0,
        **batch: float,
    ) -> None:
        settings = BatchSettings.model_validate(batch)
        self.costs = CostModel(prior)
        self._batcher: Batcher[Item] = Batcher(settings, load or LoadSettings(), self.costs)
        self._gate = AdmissionGate(settings, 1)
        self._truth, self._noise = truth, noise
        self._random = np.random.default_rng(seed)
        self._engine: deque[_Running] = deque()
        self._freed = 0.0
        self._idle = True
        self._in_engine = 0
        self._told = Told()

    def run(self, arrivals: Sequence[Item]) -> Told:
        """``arrivals``: in the order of ``admitted``, which is when they reach the log."""
        log, now = deque(arrivals), 0.0
        while log or len(self._batcher) or self._engine:
            self._finish(now)
            self._read(log, now)
            self._told.expired += self._batcher.expire(now)
            self._start(now)
            now = self._next_event(log, now)
        self._told.until = max(now, arrivals[-1].admitted)
        return self._told

    def _read(self, log: deque[Item], now: float) -> None:
        count = len(self._batcher) + self._in_engine
        if self._gate.update(count, 0, 0, now) is not Flow.READ:
            return
        room, read = self._gate.room(count, 0), 0
        while log and log[0].admitted <= now and read < room:
            item = log.popleft()
            if item.deadline <= now:
                self._told.expired.append(item)
                continue
            self._batcher.add([item])
            read += 1
        if read:
            self._told.longest_queue = max(self._told.longest_queue, len(self._batcher))
            self._batcher.relieve(now)
            self._dismiss()

    def _start(self, now: float) -> None:
        while len(self._engine) < BATCHES_IN_ENGINE:
            if not self._engine:
                batch = self._batcher.take(now, idle=self._idle)
            elif self._batcher.full or now >= self._gathered():
                batch = self._batcher.take(now, idle=True)
            else:
                return
            self._dismiss()
            if batch is None:
                return
            seconds = self._truth(batch.work) * float(self._random.lognormal(0, self._noise))
            self._engine.append(_Running(batch, now, seconds))
            self._in_engine += len(batch.items)
            self._foretell()

    def _finish(self, now: float) -> None:
        while self._engine and (end := self._end(self._engine[0])) <= now:
            running = self._engine.popleft()
            self.costs.observe(running.batch.mode, running.batch.work, end - max(running.started, self._freed))
            self._freed = end
            self._in_engine -= len(running.batch.items)
            self._foretell()
            for run in running.batch.runs:
                for item in run.items:
                    if end >= item.deadline:
                        self._told.late.append(item)
                        continue
                    self._told.answered.append((item, end))
                    if run.variant.given_up:
                        self._told.degraded.append(item)
            self._idle = not len(self._batcher)

    def _end(self, running: _Running) -> float:
        return max(running.started, self._freed) + running.seconds

    def _gathered(self) -> float:
        first = self._engine[0]
        return max(first.started, self._freed) + GATHERING_SHARE * first.batch.seconds

    def _foretell(self) -> None:
        until = self._freed
        for running in self._engine:
            until = max(until, running.started) + running.batch.seconds
        self._batcher.busy_until = until

    def _dismiss(self) -> None:
        self._told.turned_away += [(each.item, each.quota) for each in self._batcher.turned_away()]

    def _next_event(self, log: deque[Item], now: float) -> float:
        events = [self._end(self._engine[0])] if self._engine else []
        if log:
            events.append(max(log[0].admitted, now + 1e-4))
        if len(self._batcher):
            if len(self._engine) == 1 and self._gathered() > now:
                events.append(self._gathered())
            due = self._batcher.due_in(now)
            if not self._engine and due is not None:
                events.append(now + max(due, 1e-4))
            events.append(now + _TURN_S)
        return max(now, min(events, default=now))


def poisson(
    rate: Callable[[float], float], seconds: float, make: Callable[[float, np.random.Generator], Item], seed: int = 1
) -> list[Item]:
    """Arrivals at ``rate(moment)`` a second, by thinning."""
    random = np.random.default_rng(seed)
    most = max(rate(moment) for moment in np.linspace(0, seconds, 1_000))
    items: list[Item] = []
    moment = 0.0
    while (moment := moment + float(random.exponential(1 / most))) < seconds:
        if random.random() < rate(moment) / most:
            items.append(make(moment, random))
    return items
