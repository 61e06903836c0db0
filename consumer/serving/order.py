"""Waiting requests in the order in which they are served. Pure."""

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from consumer.serving.ladder import Ladder, Variant
from engine.request import RecallRequest, Score


class Queued(Protocol):
    """A request as the batcher sees it: context ``tokens``, and its times in seconds on the monotonic clock.

    ``priority``: higher goes first. ``caller``: who shares the engine with others. ``run_key``: equal for requests that
    one run may answer, none for one that runs for itself.
    """

    @property
    def tokens(self) -> int: ...
    @property
    def admitted(self) -> float: ...
    @property
    def deadline(self) -> float: ...
    @property
    def priority(self) -> int: ...
    @property
    def caller(self) -> str: ...
    @property
    def run_key(self) -> Hashable | None: ...
    @property
    def asked(self) -> RecallRequest: ...


T = TypeVar("T", bound=Queued)

Rank = tuple[int, float, int]


class Waiting(Generic[T]):
    """``key`` counts arrivals; ``whole`` is the request with nothing given up."""

    __slots__ = ("_ladder", "_less", "item", "key", "mode", "rank", "whole")

    def __init__(self, item: T, key: int, ladder: Ladder) -> None:
        self.item, self.key = item, key
        asked = item.asked
        self.mode: Score = asked.score
        self.rank: Rank = (-item.priority, item.deadline, key)
        self.whole = ladder.whole(asked, item.tokens)
        self._ladder = ladder
        self._less: list[Variant] | None = None

    def variant(self, step: int) -> Variant:
        """The request after so many steps of the ladder."""
        if step == 0:
            return self.whole
        if self._less is None:
            self._less = []
        while len(self._less) < step:
            self._less.append(self._ladder.variant(self.item.asked, self.item.tokens, len(self._less) + 1))
        return self._less[step - 1]


class UrgencyOrder(Generic[T]):
    """The highest priority first, within it the one that has to start first, then the older one."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._waiting: list[Waiting[T]] = []

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Waiting[T]]:
        return iter(self._waiting)

    def add(self, waiting: Waiting[T], alone: float) -> None:
        """``alone``: seconds that it would take by itself."""
        item = waiting.item
        rank = waiting.rank = (-item.priority, item.deadline - alone, waiting.key)
        at = bisect_left(self._ranks, rank)
        self._ranks.insert(at, rank)
        self._waiting.insert(at, waiting)

    def remove(self, gone: list[Waiting[T]]) -> None:
        """Quick where they are the most urgent ones, in their order."""
        if self._waiting[: len(gone)] == gone:
            del self._ranks[: len(gone)], self._waiting[: len(gone)]
            return
        for waiting in gone:
            at = bisect_left(self._ranks, waiting.rank)
            del self._ranks[at], self._waiting[at]
