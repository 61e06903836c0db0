"""A waiting request as the batcher sees it."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from consumer.serving.ladder import Ladder, work_of
from consumer.serving.order import UrgencyOrder, Waiting
from engine.request import BeamPolicy, RecallRequest

FAR = 1e9


def request(events: int = 1, width: int = 8, top_k: int = 1, **fields: object) -> RecallRequest:
    return RecallRequest(BeamPolicy((width,) * 3), top_k, history=np.arange(events), **fields)  # type: ignore[arg-type]


@dataclass(eq=False)
class Item:
    tokens: int = 1
    admitted: float = 0.0
    deadline: float = FAR
    priority: int = 5
    caller: str = ""
    run_key: Hashable | None = None
    asked: RecallRequest = field(default_factory=request)


def order_of(items: Iterable[Item], ladder: Ladder, seconds: Callable[[Item], float]) -> UrgencyOrder[Item]:
    """They wait, and each would take so many seconds by itself."""
    order: UrgencyOrder[Item] = UrgencyOrder()
    for key, item in enumerate(items):
        rank = (-item.priority, item.deadline - seconds(item), key)
        work = work_of(item.asked, item.tokens)
        order.add([Waiting(item.asked, item.tokens, work, (), item, key, rank, ladder)])
    return order
