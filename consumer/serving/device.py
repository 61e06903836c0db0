"""The device thread: takes batches, runs the engine, hands the answers on."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consumer.serving.batch_queue import BatchQueue
from consumer.serving.batcher import Batch
from consumer.serving.errands import Errand
from consumer.serving.in_flight import InFlight, Outcome
from consumer.serving.observer import ServingObserver
from consumer.serving.recaller import Answer, Attempt, Recaller
from engine.request import RecallRequest

BATCHES_IN_ENGINE = 2
"""One runs; the other is there when it ends, so that the device never waits for the host."""

GATHERING_SHARE = 0.7
"""So much of a batch's expected time the next one gathers requests; then it is prepared beside it."""


Answered = Callable[[Sequence[RecallRequest], Sequence[Answer]], None]
"""Hears of the requests of a batch and their answers."""


def ignore(_requests: Sequence[RecallRequest], _answers: Sequence[Answer]) -> None:
    """Nobody asks."""


@dataclass(frozen=True, slots=True)
class _Running:
    work: Batch[InFlight] | Errand
    attempt: Attempt
    started: float


class DeviceLoop:
    """``running``: requests in the engine right now."""

    def __init__(
        self,
        engine: Recaller,
        queue: BatchQueue,
        answer: Callable[[Outcome], None],
        observer: ServingObserver,
        clock: Callable[[], float],
        answered: Answered = ignore,
    ) -> None:
        self.running = 0
        self._answered = answered
        self._engine = engine
        self._queue = queue
        self._answer = answer
        self._observer = observer
        self._clock = clock
        self._in_engine: deque[_Running] = deque()
        self._idle = True
        self._freed = 0.0

    def run(self) -> None:
        """Serve until the queue is closed and what it gave is answered. Raises DeviceError."""
        while True:
            work = self._next()
            if work is not None:
                self._start(work)
            if work is None or len(self._in_engine) == BATCHES_IN_ENGINE:
                if not self._in_engine:
                    return
                self._finish(self._in_engine.popleft())

    def _next(self) -> Batch[InFlight] | Errand | None:
        if not self._in_engine:
            return self._queue.next(idle=self._idle)
        running = self._in_engine[0]
        expected = GATHERING_SHARE * self._queue.engine_time.seconds
        return self._queue.next_beside(max(running.started, self._freed) + expected, lambda: running.attempt.done)

    def _start(self, work: Batch[InFlight] | Errand) -> None:
        started = self._clock()
        if isinstance(work, Errand):
            requests = work.requests
        else:
            self._observer.batch_closed(len(work.items), work.tokens, work.reason)
            self.running += len(work.items)
            for item in work.items:
                item.started = started
            requests = [item.request for item in work.items if item.request is not None]
        attempt = Attempt(self._engine, requests, self._observer.batch_failed)
        self._in_engine.append(_Running(work, attempt, started))

    def _finish(self, running: _Running) -> None:
        answers = running.attempt.answers()
        now = self._clock()
        seconds = now - max(running.started, self._freed)  # it had the device to itself only when the last was done
        self._freed = now
        if isinstance(running.work, Errand):
            running.work.answers.set_result(answers)
            return
        items = running.work.items
        self._queue.engine_time.observe(seconds)
        self._observer.batch_finished(seconds)
        self.running -= len(items)
        for item, answer in zip(items, answers, strict=True):
            self._answer(Outcome(item, answer, "recall"))
        self._answered([item.request for item in items if item.request is not None], answers)
        self._idle = not len(self._queue)
