"""Waiting requests in the order in which they are served. Pure."""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from consumer.serving.cost_model import Work
from consumer.serving.ladder import Ladder, Variant, decoded_rows
from consumer.serving.pace import Pace
from engine.request import RecallRequest


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


class Waiting(Variant, Generic[T], eq=False, gc=False):
    """A request that waits, as it runs where nothing is given up. ``key`` counts arrivals."""

    item: T
    key: int
    rank: Rank
    ladder: Ladder
    less: list[Variant] | None = None

    def variant(self, step: int) -> Variant:
        """The request after so many steps of the ladder."""
        if step == 0:
            return self
        if self.less is None:
            self.less = []
        while len(self.less) < step:
            self.less.append(self.ladder.variant(self.request, self.tokens, len(self.less) + 1))
        return self.less[step - 1]


def arrivals(items: Sequence[T], first: int, ladder: Ladder, pace: Pace) -> list[Waiting[T]]:
    """Requests that come together; ``first`` is the key of the first one. Among equals goes first what takes longest.

    Their work is ``work_of``, written out: this is done for every request.
    """
    come: list[Waiting[T]] = []
    mode, beam = None, None
    for key, item in enumerate(items, first):
        request, tokens = item.asked, item.tokens
        if request.score != mode:
            mode = request.score
            batch, token, token_key, row, row_key = pace.coefficients(mode)
        if request.beam is not beam:
            beam = request.beam
            levels, rows = len(beam.widths), decoded_rows(beam.widths)
        context = tokens
        if request.session is not None and request.history is not None and len(request.history) * levels > tokens:
            context = len(request.history) * levels
        token_keys, row_keys = tokens * (context - tokens / 2), rows * context
        alone = batch + token * tokens + token_key * token_keys + row * rows + row_key * row_keys
        rank = (-item.priority, item.deadline - alone, key)
        work = Work(tokens, token_keys, rows, row_keys)
        come.append(Waiting(request, tokens, work, (), item, key, rank, ladder))
    return come


_rank = attrgetter("rank")
_MANY = 16
"""Finding the place of one costs about as much as going through so many in their order."""


class UrgencyOrder(Generic[T]):
    """The highest priority first, within it the one that has to start first, then the older one."""

    def __init__(self) -> None:
        self._waiting: list[Waiting[T]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting[T]]:
        return iter(self._waiting)

    def first(self, most: int) -> list[Waiting[T]]:
        """The most urgent ones."""
        return self._waiting[:most]

    def add(self, come: list[Waiting[T]]) -> None:
        """Quick where those that wait are more urgent than these."""
        come = sorted(come, key=_rank)
        if self._waiting and come and come[0].rank < self._waiting[-1].rank:
            at = bisect_left(self._waiting, come[0].rank, key=_rank)
            if len(self._waiting) - at > _MANY * len(come):
                for waiting in come:
                    insort(self._waiting, waiting, at, key=_rank)
                return
            come = sorted(self._waiting[at:] + come, key=_rank)
            del self._waiting[at:]
        self._waiting += come

    def remove(self, gone: list[Waiting[T]]) -> None:
        """Quick where they are the most urgent ones, in their order."""
        if self._waiting[: len(gone)] == gone:
            del self._waiting[: len(gone)]
            return
        for waiting in gone:
            del self._waiting[bisect_left(self._waiting, waiting.rank, key=_rank)]
