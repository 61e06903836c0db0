"""Waiting requests in the order in which they are served. Pure."""

from bisect import bisect_left, insort
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
    """``key`` counts arrivals."""

    __slots__ = ("_ladder", "_variants", "item", "key", "mode", "rank")

    def __init__(self, item: T, key: int, ladder: Ladder) -> None:
        self.item, self.key = item, key
        self.mode: Score = item.asked.score
        self.rank: Rank = (-item.priority, item.deadline, key)
        self._ladder = ladder
        self._variants: list[Variant] = []

    def variant(self, step: int) -> Variant:
        """The request after so many steps of the ladder."""
        while len(self._variants) <= step:
            self._variants.append(self._ladder.variant(self.item.asked, self.item.tokens, len(self._variants)))
        return self._variants[step]


class UrgencyOrder(Generic[T]):
    """The highest priority first, within it the one that has to start first, then the older one."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._waiting: dict[int, Waiting[T]] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Waiting[T]]:
        for _, _, key in self._ranks:
            yield self._waiting[key]

    def add(self, waiting: Waiting[T], alone: float) -> None:
        """``alone``: seconds that it would take by itself."""
        waiting.rank = (-waiting.item.priority, waiting.item.deadline - alone, waiting.key)
        insort(self._ranks, waiting.rank)
        self._waiting[waiting.key] = waiting

    def remove(self, waiting: Waiting[T]) -> None:
        del self._waiting[waiting.key]
        del self._ranks[bisect_left(self._ranks, waiting.rank)]
