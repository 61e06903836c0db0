"""The device thread: takes batches, runs the engine, hands the answers on."""

from collections.abc import Callable

from consumer.serving.batch_queue import BatchQueue
from consumer.serving.batcher import Batch
from consumer.serving.in_flight import InFlight, Outcome
from consumer.serving.observer import ServingObserver
from consumer.serving.recaller import Recaller, recall_isolated


class DeviceLoop:
    """``running``: requests in the engine right now."""

    def __init__(
        self,
        engine: Recaller,
        queue: BatchQueue,
        answer: Callable[[Outcome], None],
        observer: ServingObserver,
        clock: Callable[[], float],
    ) -> None:
        self.running = 0
        self._engine = engine
        self._queue = queue
        self._answer = answer
        self._observer = observer
        self._clock = clock

    def run(self) -> None:
        """Serve until the queue is closed. Raises DeviceError."""
        idle = True
        while batch := self._queue.next(idle=idle):
            self._serve(batch)
            idle = not len(self._queue)

    def _serve(self, batch: Batch[InFlight]) -> None:
        self._observer.batch_closed(len(batch.items), batch.tokens, batch.reason)
        self.running = len(batch.items)
        started = self._clock()
        requests = [item.request for item in batch.items if item.request is not None]
        answers = recall_isolated(self._engine, requests, self._observer.batch_failed)
        seconds = self._clock() - started
        self._queue.engine_time.observe(seconds)
        self._observer.batch_finished(seconds)
        self.running = 0
        for item, answer in zip(batch.items, answers, strict=True):
            item.started = started
            self._answer(Outcome(item, answer, "recall"))
