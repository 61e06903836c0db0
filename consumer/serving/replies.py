"""The reply thread: takes what records came to and has it published."""

from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from consumer.serving.in_flight import Job
from consumer.serving.publisher import Publisher


class ReplyLoop:
    """Between the threads that answer and the publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._inbox: SimpleQueue[Sequence[Job]] = SimpleQueue()

    def put(self, jobs: Sequence[Job]) -> None:
        """Hand over what records came to; from any thread."""
        if jobs:
            self._inbox.put(jobs)

    def stop(self) -> None:
        """End the loop after what was put before."""
        self._inbox.put(())

    def run(self) -> None:
        """Publish until stopped. Raises StreamError for anything that cannot be delivered."""
        self._publisher.start()
        stopped = False
        while not stopped:
            jobs: list[Job] = []
            with suppress(Empty):
                more = self._inbox.get(timeout=self._publisher.patience)
                while more:
                    jobs += more
                    if len(jobs) >= self._publisher.at_once:
                        break
                    more = self._inbox.get_nowait()
                stopped = not more
            self._publisher.publish(jobs)

    def abandon(self, budget: float) -> None:
        """Give unconfirmed sends ``budget`` seconds to leave, then drop them. After ``run`` has ended."""
        self._publisher.abandon(budget)
