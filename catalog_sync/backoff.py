"""Pauses between tries."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Pauses in seconds that double from ``first`` to ``cap``, varied by the share ``jitter``."""

    first: float
    cap: float
    jitter: float
    random: Callable[[], float]
    failures: int = 0

    def pause(self) -> float:
        """The pause after one more failure."""
        pause = min(self.first * 2.0**self.failures, self.cap)
        self.failures = min(self.failures + 1, 32)
        return varied(pause, self.jitter, self.random)

    def reset(self) -> None:
        self.failures = 0


def varied(seconds: float, jitter: float, random: Callable[[], float]) -> float:
    return seconds * (1.0 + jitter * (2.0 * random() - 1.0))
