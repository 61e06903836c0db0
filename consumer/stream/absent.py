"""Places in topics that are not there, as the client has just said."""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

_KNOWN_S = 1.0
_MOST = 1_000

F = TypeVar("F")


class Absent(Generic[F]):
    """Which partitions ``failure`` was said of, for a second.

    The client loses some 400 bytes with each error that it raises (confluent-kafka 2.16), and requests name the place
    of their replies: whoever names one that does not exist again and again must not use the process's memory up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[int, float, F]] = {}

    def note(self, topic: str, first: int, failure: F) -> None:
        """It has neither this partition nor any above."""
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[topic] = first, self._clock() + _KNOWN_S, failure

    def failure(self, topic: str, partition: int) -> F | None:
        """None: it may be there."""
        if topic not in self._known:
            return None
        first, until, failure = self._known[topic]
        return failure if partition >= first and self._clock() < until else None
