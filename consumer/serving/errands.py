"""What the device thread does between two batches: requests of the process's own, and users who go."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from consumer.serving.recaller import Answer
from engine.request import RecallRequest


@dataclass(frozen=True, slots=True, eq=False)
class Errand:
    """``answers``: one per request, in order. In their place ``forget``, a user whom the engine is to forget, or
    ``drop``, users of whom it need not keep anything.
    """

    requests: Sequence[RecallRequest]
    answers: "Future[list[Answer]]" = field(default_factory=Future)
    forget: str | None = None
    drop: Collection[str] = ()


class Errands:
    """What waits for the device thread. Thread-safe: ``deque`` is, and a wake-up too many does no harm."""

    def __init__(self) -> None:
        self._waiting: deque[Errand] = deque()
        self._wake: Callable[[], None] = lambda: None

    def on_arrival(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` for every errand that comes, from the thread that brings it."""
        self._wake = wake

    def ask(self, requests: Sequence[RecallRequest]) -> "Future[list[Answer]]":
        """Queue requests. The answers come when the device thread gets to them."""
        return self._queue(Errand(requests))

    def forget(self, user: str) -> "Future[list[Answer]]":
        """Have the engine forget a user; the answers are none."""
        return self._queue(Errand((), forget=user))

    def drop(self, users: Collection[str]) -> "Future[list[Answer]]":
        """Have the engine let go of what it keeps of users; the answers are none."""
        return self._queue(Errand((), drop=users))

    def take(self) -> Errand | None:
        """The oldest one that nobody has given up; for the thread that may call the engine."""
        while self._waiting:
            errand = self._waiting.popleft()
            if errand.answers.set_running_or_notify_cancel():
                return errand
        return None

    def _queue(self, errand: Errand) -> "Future[list[Answer]]":
        self._waiting.append(errand)
        self._wake()
        return errand.answers
