"""What the batcher gives: batches for the engine, and requests that cannot be answered in time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

import msgspec

from consumer.serving.cost_model import Work
from consumer.serving.ladder import Variant
from consumer.serving.observer import CloseReason
from consumer.serving.order import T
from engine.request import RecallRequest, Score


class Run(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """One request of a batch as it goes to the engine, and whom its answer serves: the newest, which it is, last."""

    items: tuple[T, ...]
    variant: Variant


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """Requests that go to the engine together, the most urgent first: each the newest of its run, and what it is served
    with. ``others``: older ones that the answer at this place serves, too.

    ``work``: what it asks of the engine. ``seconds``: expected, in it; ``foreseen``: the same where enough was measured
    to rely on it, else 0.
    """

    newest: list[T]
    variants: list[Variant]
    others: Mapping[int, tuple[T, ...]]
    work: Work
    tokens: int
    reason: CloseReason
    mode: Score
    seconds: float
    foreseen: float

    @property
    def requests(self) -> list[RecallRequest]:
        """What the engine is asked."""
        return [variant.request for variant in self.variants]

    @property
    def runs(self) -> list[Run[T]]:
        """One a request."""
        placed = enumerate(zip(self.newest, self.variants, strict=True))
        return [Run((*self.others.get(at, ()), newest), variant) for at, (newest, variant) in placed]

    @property
    def items(self) -> list[T]:
        """All that it answers."""
        return [item for run in self.runs for item in run.items] if self.others else self.newest


@dataclass(frozen=True, slots=True)
class TurnedAway(Generic[T]):
    """A request that cannot be answered in time. ``quota``: because its caller has more than its share."""

    item: T
    quota: bool
