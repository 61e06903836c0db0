"""What the batcher gives: batches for the engine, and requests that cannot be answered in time."""

from dataclasses import dataclass
from typing import Generic

import msgspec

from consumer.serving.cost_model import Work
from consumer.serving.load_settings import Step
from consumer.serving.observer import CloseReason
from consumer.serving.order import T
from engine.request import RecallRequest, Score


class Run(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """One request of a batch as it goes to the engine, and whom its answer serves: the newest, which it is, last."""

    items: tuple[T, ...]
    request: RecallRequest
    work: Work
    given_up: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """Requests that go to the engine together, the most urgent first.

    ``work``: what it asks of the engine. ``seconds``: expected, in it; ``foreseen``: the same where enough was measured
    to rely on it, else 0.
    """

    runs: tuple[Run[T], ...]
    work: Work
    tokens: int
    reason: CloseReason
    mode: Score
    seconds: float
    foreseen: float

    @property
    def items(self) -> tuple[T, ...]:
        """All that it answers."""
        return tuple([item for run in self.runs for item in run.items])


@dataclass(frozen=True, slots=True)
class TurnedAway(Generic[T]):
    """A request that cannot be answered in time. ``quota``: because its caller has more than its share."""

    item: T
    quota: bool
