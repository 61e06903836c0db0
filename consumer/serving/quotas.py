"""Who is turned away when not all can be served in time: the caller that takes most for its share. Pure."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic

from consumer.serving.order import T, Waiting


@dataclass(frozen=True, slots=True)
class Loser(Generic[T]):
    """A request that cannot be served in time. ``quota``: another caller's goes on in its place."""

    waiting: Waiting[T]
    quota: bool


def in_time(
    order: Iterable[Waiting[T]],
    start: float,
    seconds: Callable[[Waiting[T]], float],
    due: Callable[[Waiting[T]], float],
) -> bool:
    """Whether ``losers`` would find none."""
    time = start
    for waiting in order:
        time += seconds(waiting)
        if time > due(waiting):
            return False
    return True


def losers(
    order: Iterable[Waiting[T]],
    start: float,
    seconds: Callable[[Waiting[T]], float],
    due: Callable[[Waiting[T]], float],
    shares: Mapping[str, float],
) -> list[Loser[T]]:
    """The requests without which all others are done by when they are ``due``, none if that holds for all.

    ``order``: as they are served, from ``start`` on, each for so many ``seconds``. As in the rule of Moore and Hodgson,
    whenever one would be late, one of those up to it goes. Which one: of the caller that holds most seconds for its
    share, of those the one of lowest priority, of those the last that came. So what callers get stands in proportion
    to their shares, and one that asks for less than that loses nothing.
    """
    time = start
    held: dict[str, float] = {}
    heaps: dict[str, list[tuple[int, int, float, Waiting[T]]]] = {}
    lost: list[Loser[T]] = []
    for waiting in order:
        item, cost = waiting.item, seconds(waiting)
        time += cost
        held[item.caller] = held.get(item.caller, 0.0) + cost
        heapq.heappush(heaps.setdefault(item.caller, []), (item.priority, -waiting.key, cost, waiting))
        while time > due(waiting):
            caller = max((name for name in heaps if heaps[name]), key=lambda name: held[name] / shares.get(name, 1.0))
            _, _, freed, gone = heapq.heappop(heaps[caller])
            held[caller] -= freed
            time -= freed
            lost.append(Loser(gone, quota=caller != item.caller))
            if gone is waiting:
                break
    return lost
