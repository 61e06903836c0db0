"""An engine without a model, behind the serving loop's protocol."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.errors import RequestError
from engine.request import ItemIds, RecallRequest, RecallResult


@dataclass(frozen=True)
class FakeSpec:
    levels: tuple[int, ...] = (0, 1, 2)
    max_history_items: int = 200
    history_drop: int = 50


def _history(request: RecallRequest) -> ItemIds:
    assert request.history is not None
    return request.history


def items_for(request: RecallRequest) -> list[int]:
    """What the fake recalls: ids that follow the last one of the history."""
    history = _history(request)
    last = int(history[-1]) if len(history) else 0
    return [last + 1 + rank for rank in range(request.top_k)]


def result_for(request: RecallRequest) -> RecallResult:
    return RecallResult(
        items=np.array(items_for(request), dtype=np.int64),
        scores=-np.arange(request.top_k, dtype=np.float32),
        model="fake",
        catalog="v1",
        beam_widths=request.beam.widths,
        exhausted=False,
        context_tokens=len(_history(request)),
    )


@dataclass(frozen=True)
class Finished:
    """A batch that the engine answered while it was submitted."""

    answers: list[RecallResult | RequestError]
    done: bool = True

    def collect(self) -> list[RecallResult | RequestError]:
        return self.answers


@dataclass
class FakeEngine:
    """Answers at once unless told otherwise.

    ``gate``: cleared, the engine is busy until it is set again. ``busy`` is set while a batch runs.
    ``fault``: called with a batch before it is answered; may raise, as a bug or a lost device would.
    """

    spec: FakeSpec = field(default_factory=FakeSpec)
    gate: threading.Event = field(default_factory=threading.Event)
    busy: threading.Event = field(default_factory=threading.Event)
    fault: Callable[[Sequence[RecallRequest]], None] | None = None
    reject: Callable[[RecallRequest], RequestError | None] | None = None
    sizing: Callable[[RecallRequest], int] = lambda request: len(_history(request))
    batches: list[int] = field(default_factory=list)
    histories: list[list[int]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    """Of ``users``, those who were."""
    users: tuple[str, ...] = ()
    kind: type | None = None
    """Of the catalog's item ids; none: either."""

    def __post_init__(self) -> None:
        self.gate.set()

    def validate(self, request: RecallRequest) -> None:
        if request.top_k > 1000:
            raise RequestError("bad_request", "top_k: at most 1000")

    def check_ids(self, ids: ItemIds) -> None:
        if len(ids) and self.kind is not None and isinstance(ids[0], str) != (self.kind is str):
            raise RequestError("bad_request", "item ids are of another kind")

    def estimate_tokens(self, request: RecallRequest) -> int:
        return self.sizing(request)

    def forget(self, user: str) -> None:
        self.forgotten.append(user)

    def drop(self, lost: Callable[[str], bool]) -> None:
        self.dropped |= {user for user in self.users if lost(user)}

    def submit(self, requests: Sequence[RecallRequest], *, beside: bool = True) -> "Finished":
        return Finished(self.recall(requests))

    def recall(self, requests: Sequence[RecallRequest]) -> list[RecallResult | RequestError]:
        self.batches.append(len(requests))
        self.busy.set()
        self.gate.wait()
        self.busy.clear()
        if self.fault is not None:
            self.fault(requests)
        self.histories += [[int(item) for item in _history(request)] for request in requests]
        return [(self.reject and self.reject(request)) or result_for(request) for request in requests]
