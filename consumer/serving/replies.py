"""The reply thread: takes what records came to and has it published."""

from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal

from consumer.serving.in_flight import Job
from consumer.serving.publisher import Publisher


class ReplyLoop:
    """Between the threads that answer and the publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._inbox: SimpleQueue[Job | Literal["stop"]] = SimpleQueue()

    def put(self, job: Job) -> None:
        """Hand over what a record came to; from any thread."""
        self._inbox.put(job)

    def stop(self) -> None:
        """End the loop after what was put before."""
        self._inbox.put("stop")

    def run(self) -> None:
        """Publish until stopped. Raises StreamError for anything that cannot be delivered."""
        self._publisher.start()
        stopped = False
        while not stopped:
            jobs: list[Job] = []
            with suppress(Empty):
                job = self._inbox.get(timeout=self._publisher.patience)
                while job != "stop":
                    jobs.append(job)
                    if len(jobs) == self._publisher.at_once:
                        break
                    job = self._inbox.get_nowait()
                stopped = job == "stop"
            self._publisher.publish(jobs)

    def abandon(self, budget: float) -> None:
        """Give unconfirmed sends ``budget`` seconds to leave, then drop them. After ``run`` has ended."""
        self._publisher.abandon(budget)
