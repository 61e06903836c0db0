"""A waiting request as the batcher sees it."""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

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
