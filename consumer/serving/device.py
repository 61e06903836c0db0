"""The device thread: takes batches, runs the engine, hands the answers on."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from consumer.serving.batch import Batch, Run
from consumer.serving.batch_queue import BatchQueue
from consumer.serving.coalesce import cut
from consumer.serving.cost_model import Work
from consumer.serving.errands import Errand
from consumer.serving.forgotten import Forgotten
from consumer.serving.in_flight import InFlight, Outcome
from consumer.serving.observer import ServingObserver
from consumer.serving.recaller import Answer, Attempt, Recaller
from engine.request import RecallRequest, RecallResult

BATCHES_IN_ENGINE = 2
"""One runs; the other is there when it ends, so that the device never waits for the host."""

GATHERING_SHARE = 0.7
"""So much of a batch's expected time the next one gathers requests; then it is prepared beside it."""


AnswerListener = Callable[[Sequence[RecallRequest], Sequence[Answer]], None]
"""Hears of the requests of a batch and their answers."""


def ignore(_requests: Sequence[RecallRequest], _answers: Sequence[Answer]) -> None:
    """Nobody asks."""


@dataclass(frozen=True, slots=True)
class _Running:
    """``expected``: seconds; ``foreseen``: the same as far as it may be relied on."""

    work: Batch[InFlight] | Errand
    attempt: Attempt
    started: float
    expected: float
    foreseen: float


class DeviceLoop:
    """``running``: requests in the engine right now."""

    def __init__(
        self,
        engine: Recaller,
        queue: BatchQueue,
        answer: Callable[[Sequence[Outcome]], None],
        observer: ServingObserver,
        clock: Callable[[], float],
        answered: AnswerListener = ignore,
    ) -> None:
        self.running = 0
        self._answered = answered
        self._engine = engine
        self._queue = queue
        self._answer = answer
        self._observer = observer
        self._clock = clock
        self._in_engine: deque[_Running] = deque()
        self._forgotten = Forgotten()
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
        gathering = GATHERING_SHARE * running.expected
        return self._queue.next_beside(max(running.started, self._freed) + gathering, lambda: running.attempt.done)

    def _start(self, work: Batch[InFlight] | Errand) -> None:
        started = self._clock()
        if isinstance(work, Errand) and (work.forget is not None or work.drop):
            if work.forget is not None:
                self._forget(work.forget, started)
            else:
                self._engine.drop(work.drop.__contains__)
            work.answers.set_result([])  # it takes no batch's place in the engine
            return
        if isinstance(work, Errand):
            requests, expected, foreseen = work.requests, 0.0, 0.0
        else:
            items, expected, foreseen = work.items, work.seconds, work.foreseen
            self._observer.batch_closed(len(items), work.tokens, work.reason)
            if work.others:
                self._observer.coalesced(len(items) - len(work.newest))
            self.running += len(items)
            for item in items:
                item.started = started
            requests = self._requests(work)
        self._foretell((started, foreseen))
        # Beside a search a prefill gains throughput and holds the search up, which is worth it where others wait.
        attempt = Attempt(self._engine, requests, self._observer.batch_failed, beside=len(self._queue) > 0)
        self._in_engine.append(_Running(work, attempt, started, expected, foreseen))

    def _finish(self, running: _Running) -> None:
        answers = running.attempt.answers()
        now = self._clock()
        seconds = now - max(running.started, self._freed)  # it had the device to itself only when the last was done
        self._freed = now
        if isinstance(running.work, Errand):
            running.work.answers.set_result(answers)
            return
        batch = running.work
        self._learn(batch, answers, seconds, failed=running.attempt.failed)
        self._foretell()
        self._observer.batch_finished(seconds, running.expected)
        self.running -= len(batch.items)
        self._answer(self._shared(batch, answers) if batch.others else _outcomes(batch, answers))
        self._answered(batch.requests, answers)
        self._idle = not len(self._queue)

    def _forget(self, user: str, now: float) -> None:
        """What was read of the user before is still answered, and leaves nothing either."""
        self._engine.forget(user)
        self._forgotten.add(user, now)
        for running in self._in_engine:
            running.attempt.forget(user)

    def _requests(self, batch: Batch[InFlight]) -> list[RecallRequest]:
        if not len(self._forgotten):
            return batch.requests
        return [
            replace(request, session=None)
            if request.session and self._forgotten.covers(request.session, newest.admitted)
            else request
            for request, newest in zip(batch.requests, batch.newest, strict=True)
        ]

    def _shared(self, batch: Batch[InFlight], answers: Sequence[Answer]) -> list[Outcome]:
        """What comes of a batch in which some share a run."""
        outcomes: list[Outcome] = []
        for run, answer in zip(batch.runs, answers, strict=True):
            for item in self._served(run, answer):
                part = _part(answer, item) if len(run.items) > 1 else answer
                outcomes.append(Outcome(item, part, "recall", run.variant.given_up))
        return outcomes

    def _served(self, run: Run[InFlight], answer: Answer) -> Sequence[InFlight]:
        """Whom the answer is for. What is wrong with the newest of a run need not be with the others: again."""
        if isinstance(answer, RecallResult) or len(run.items) == 1:
            return run.items
        *others, newest = run.items
        for item in others:
            item.started = None
        self._queue.add(others)
        return [newest]

    def _learn(self, batch: Batch[InFlight], answers: Sequence[Answer], seconds: float, *, failed: bool) -> None:
        """What was refused took no time, and what was tried again took too much, to tell how long batches take."""
        if failed:
            return
        work, placed = batch.work, zip(batch.variants, answers, strict=True)
        if {*map(type, answers)} != {RecallResult}:
            done = [variant.work for variant, answer in placed if isinstance(answer, RecallResult)]
            if not done:
                return
            work = Work.total(done)
        self._queue.costs.observe(batch.mode, work, seconds)

    def _foretell(self, *starting: tuple[float, float]) -> None:
        """Tell the queue when the engine will be free; ``starting``: when, and how long that is expected to take."""
        until = self._freed
        for started, expected in (*((each.started, each.foreseen) for each in self._in_engine), *starting):
            until = max(until, started) + expected
        self._queue.busy_until(until)


def _outcomes(batch: Batch[InFlight], answers: Sequence[Answer]) -> list[Outcome]:
    """What comes of a batch in which nobody shares a run."""
    placed = zip(batch.newest, answers, batch.variants, strict=True)
    return [Outcome(item, answer, "recall", variant.given_up) for item, answer, variant in placed]


def _part(answer: Answer, item: InFlight) -> Answer:
    """What one of those that share a run gets of its answer."""
    return cut(answer, item.asked.top_k) if isinstance(answer, RecallResult) else answer
