"""What the watcher knows and decides: a state machine without I/O; times are seconds of any monotonic clock."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from catalog_sync.backoff import Backoff, varied
from engine.errors import CatalogError

if TYPE_CHECKING:
    from catalog_sync.layout import Pointer

State = Literal[
    "starting",
    "fetching",
    "staged",
    "canary",
    "current",
    "refused",
    "quarantined",
    "rolled_back",
    "no_pointer",
    "unreachable",
]
TRANSIENT = frozenset({"missing", "memory", "unreachable", "busy"})
"""Refusals that may heal without the pointer changing."""
RETRY_CAP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class WatcherSnapshot:
    """The watcher as metrics and the status page show it.

    ``staleness_seconds``: since the active version was last known to be the one that should serve. ``target``: that
    one, as last read; ``pinned``: from the group's pin, else from the pointer. ``reason`` and ``error`` are those of
    ``state``; none when all is well. ``condemned``: reason by version found bad here; ``kept``: the state of every
    version that the group keeps, ``resident`` or why not.
    """

    state: State
    active: str | None
    previous: str | None
    generation: int
    target: str | None
    reason: str | None
    error: str | None
    activated: int
    refused: Mapping[str, int]
    polls: int
    notices: int
    reconnects: int
    staleness_seconds: float
    resident_bytes: int
    pinned: bool = False
    rolled_back: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    condemned: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Target:
    """The pointer's latest value and what became of it. ``retry_at``: when a transient refusal is tried again."""

    pointer: "Pointer"
    backoff: Backoff
    outcome: Literal["open", "active", "refused"] = "open"
    refusal: CatalogError | None = None
    refused_as: State = "refused"
    retry_at: float | None = None


@dataclass(slots=True)
class WatchState:
    """Decides when to read the pointer and whether to act on what it says.

    ``random`` gives uniform numbers in 0 to 1 for the jitter.
    """

    poll_seconds: float
    jitter: float
    retry_seconds: float
    started: float
    random: Callable[[], float]

    state: State = "starting"
    reason: str | None = None
    error: str | None = None
    generation: int = 0
    activated: int = 0
    rolled_back: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    polls: int = 0
    notices: int = 0
    reconnects: int = 0
    _due: float = field(init=False)
    _backoff: Backoff = field(init=False)
    _target: _Target | None = None
    _confirmed: float = field(init=False)

    def __post_init__(self) -> None:
        self._due = self._confirmed = self.started
        self._backoff = self.backoff(self.poll_seconds)

    def backoff(self, cap: float) -> Backoff:
        return Backoff(self.retry_seconds, cap, self.jitter, self.random)

    @property
    def target(self) -> "Pointer | None":
        return self._target.pointer if self._target else None

    def wait(self, now: float) -> float:
        """Seconds until the pointer should be read; 0 if now."""
        return max(0.0, self._due - now)

    def staleness(self, now: float) -> float:
        """Seconds since the active version was last known to be the pointer's, or since the start."""
        return now - self._confirmed

    def notice(self, now: float) -> None:
        """A notice came: read the pointer now."""
        self.notices += 1
        self._due = now

    def hurry(self, now: float) -> None:
        """Something changed here that the fleet should hear of: read the pointer and acknowledge now."""
        self._due = now

    def subscribed(self, now: float) -> None:
        """A subscription began; what was announced before it is lost: read the pointer now."""
        self._due = now

    def pointer_read(self, pointer: "Pointer | None", now: float) -> "Pointer | None":
        """The pointer was read; returns it if it should be acted upon, for ``activate`` or ``refuse`` to follow."""
        self.polls += 1
        self._backoff.reset()
        self._due = now + varied(self.poll_seconds, self.jitter, self.random)
        if pointer is None:
            self._report("no_pointer", CatalogError("no_pointer", "the model has no pointer in Redis"))
            return None
        if self._target is None or _key(pointer) != _key(self._target.pointer):
            self._target = _Target(pointer, self.backoff(RETRY_CAP_SECONDS))
        target = self._target
        if target.outcome == "active":
            self._confirmed = now
            self._report("current")
            return None
        if target.outcome == "refused" and (target.retry_at is None or now < target.retry_at):
            self._due = min(self._due, target.retry_at or self._due)
            self._report(target.refused_as, target.refusal)
            return None
        self._report("fetching")
        return pointer

    def reach(self, state: Literal["staged", "canary"]) -> None:
        """The target has come so far on its way."""
        self._report(state)

    def activate(self, now: float) -> None:
        """The target is active now."""
        if self._target is not None:
            self._target.outcome = "active"
            self.generation = self._target.pointer.generation
        self.activated += 1
        self._confirmed = now
        self._report("current")

    def refuse(self, error: CatalogError, now: float) -> None:
        """The target cannot be served; it is tried again only if the reason may pass, or when the pointer changes."""
        self.refused[error.reason] += 1
        self._settle("quarantined" if error.reason == "quarantined" else "refused", error)
        target = self._target
        if target is None:
            return
        if error.reason in TRANSIENT:
            target.retry_at = now + target.backoff.pause()
            self._due = min(self._due, target.retry_at)

    def roll_back(self, version: str, error: CatalogError) -> None:
        """``version`` was active, was found bad, and the one before serves again; it is not taken up anew."""
        self.rolled_back += 1
        if self._target is not None and self._target.pointer.version == version:
            self._settle("rolled_back", error)

    def fail(self, error: CatalogError, now: float) -> None:
        """Redis did not answer, or not with a pointer; the next try waits longer each time, a poll period at most."""
        self._due = now + self._backoff.pause()
        self._report("unreachable", error)

    def _settle(self, state: State, error: CatalogError) -> None:
        self._report(state, error)
        if self._target is not None:
            self._target.outcome, self._target.refusal, self._target.refused_as = "refused", error, state
            self._target.retry_at = None

    def _report(self, state: State, error: CatalogError | None = None) -> None:
        self.state = state
        self.reason, self.error = (error.reason, error.message) if error else (None, None)


def _key(pointer: "Pointer") -> tuple[int, str]:
    return pointer.generation, pointer.manifest
