"""Does the work move? The age of the loops' ticks, and the progress of every partition (pure, injected clock)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """``done``: every offset below it is answered. ``lag``: messages from there to the end; none while unknown."""

    topic: str
    partition: int
    done: int
    lag: int | None


class StallDetector:
    """A partition is stalled when it has lag and its ``done`` has not moved for ``after_s`` seconds.

    A partition that comes (back) to this process starts afresh, so that a rebalance never looks like a stall.
    """

    def __init__(self, after_s: float, clock: Callable[[], float]) -> None:
        self._after_s = after_s
        self._clock = clock
        self._moved: dict[Partition, tuple[int, float]] = {}

    def observe(self, partitions: Iterable[PartitionState]) -> tuple[Partition, ...]:
        """Take in the state of all assigned partitions and return those that stand still."""
        now = self._clock()
        before, self._moved = self._moved, {}
        stalled = []
        for state in partitions:
            key = (state.topic, state.partition)
            done, since = before.get(key, (state.done, now))
            if done != state.done or not state.lag:
                since = now
            self._moved[key] = (state.done, since)
            if now - since >= self._after_s:
                stalled.append(key)
        return tuple(stalled)
