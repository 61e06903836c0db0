"""Judges a version by the answers it gives after it went live. No I/O; times are seconds of any monotonic clock."""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Literal

Kind = Literal["errors", "empty"]
BreachReason = Literal["error_rate", "empty_rate"]
BASELINE = 4
"""The share before is taken over the last answers, at most about so many times the policy's ``requests``."""
_LATE = 8
"""Answers of so many of the last versions under one watch still count; batches under way hold fewer."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Answers of one version: how many, and how many of them were errors or had no items."""

    requests: int = 0
    errors: int = 0
    empty: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.requests + other.requests, self.errors + other.errors, self.empty + other.empty)

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(self.requests - other.requests, self.errors - other.errors, self.empty - other.empty)

    def share(self, kind: Kind) -> float:
        count = self.errors if kind == "errors" else self.empty
        return count / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """A version is bad when, of at least ``requests`` answers, the share of errors or of empty ones is at least
    ``bound`` and at least ``ratio`` times what it was before. It is watched for ``seconds``, and until it and its
    deltas have given so many answers.
    """

    requests: int
    seconds: float
    ratio: float
    bound: float


@dataclass(frozen=True, slots=True)
class Breach:
    """``version`` served; ``first``: the one that it was made of by deltas and that followed the last good one.

    What is bad came with one of those from ``first`` on, and nobody knows with which.
    """

    version: str
    first: str
    reason: BreachReason
    message: str


class ActivationGuard:
    """``activated`` when a version goes live, ``observe`` for its answers; a breach is reported once.

    A watch goes on over the deltas of the version under watch: what they answered counts together until it is enough to
    judge. The version that serves then is good; the next delta's answers count anew, against the same ``before``, until
    the time is over. ``before``: the last answers of versions that passed.
    """

    def __init__(self, policy: GuardPolicy) -> None:
        self._policy = policy
        self._before: deque[Tally] = deque()
        self.before = Tally()
        self._watched: tuple[str, ...] = ()
        self._first = ""
        self._bad: tuple[str, ...] = ()
        self._since = 0.0
        self._after = Tally()
        self._good: list[Tally] = []

    @property
    def watched(self) -> str | None:
        """The version under watch; none when the last one has passed."""
        return self._watched[-1] if self._watched else None

    def activated(self, version: str, now: float, ancestors: Container[str] = ()) -> bool:
        """``version`` serves from now on; ``ancestors``: what it was made of by deltas.

        Returns whether the version that served until now is good: one to go back to.
        """
        judged = self.watched is None or self._after.requests >= self._policy.requests
        if self.watched is None or self.watched not in ancestors:
            self._watched, self._first, self._since, self._after, self._good = (version,), version, now, Tally(), []
        elif judged:
            self._good.append(self._after)
            self._watched, self._first, self._after = (version,), version, Tally()
        else:
            self._watched = (*self._watched, version)[-_LATE:]
        self._bad = ()
        return judged

    def dismiss(self) -> None:
        """Watch nothing: what serves now has served before."""
        self._watched = ()

    def observe(self, version: str, tally: Tally, now: float) -> Breach | None:
        """Answers of a version; late ones of a version that is not under watch any more are no evidence."""
        if version not in self._watched:
            if not self._watched and version not in self._bad:
                self._remember(tally)
            return None
        self._after += tally
        if self._after.requests < self._policy.requests:
            return None
        if breach := self._breach(self._watched[-1]):
            self._bad = self._watched
            self.dismiss()
            return breach
        if now - self._since >= self._policy.seconds:
            for passed in (*self._good, self._after):
                self._remember(passed)
            self.dismiss()
        return None

    def _remember(self, tally: Tally) -> None:
        self._before.append(tally)
        self.before += tally
        while self.before.requests - self._before[0].requests >= BASELINE * self._policy.requests:
            self.before -= self._before.popleft()

    def _breach(self, version: str) -> Breach | None:
        before, after = self.before, self._after
        if before.requests < self._policy.requests:  # nothing to compare with
            return None
        for kind, reason, what in _KINDS:
            was, now = before.share(kind), after.share(kind)
            if now >= self._policy.bound and now >= self._policy.ratio * was:
                message = f"{now:.1%} of {after.requests} answers {what}, before {was:.1%} of {before.requests}"
                return Breach(version, self._first, reason, message)
        return None


_KINDS: tuple[tuple[Kind, BreachReason, str], ...] = (
    ("errors", "error_rate", "were errors"),
    ("empty", "empty_rate", "had no items"),
)
