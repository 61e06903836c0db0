"""The state of the serving loop as other threads may see it: immutable, published by the intake thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from consumer.serving.histories import HistoriesSnapshot
from consumer.stream.group import UNDECIDED, GroupView


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One owned partition. Offsets name the next record: ``position`` to be read, ``committed`` to be finished.

    ``committed`` is none until the broker confirmed a commit of this process; ``high`` (the partition's end) and
    ``lag`` (offsets from the oldest unfinished record to the end, 0 where nothing can be read) are none until the first
    fetch. ``lag_seconds`` is the age of the oldest unfinished record, 0 without one.
    """

    topic: str
    partition: int
    epoch: int
    position: int | None
    committed: int | None
    high: int | None
    lag: int | None
    lag_seconds: float
    unfinished: int


@dataclass(frozen=True, slots=True)
class ServingSnapshot:
    """``tick_age``: seconds since the intake loop last turned. ``not_ready``: why no work is taken, empty when ready.

    ``in_flight`` counts requests read but not confirmed (``in_flight_bytes`` their records): ``queued`` wait for a
    batch, ``running`` are in the engine, the rest wait for their reply's confirmation. ``step``: how far down the
    ladder batches are made; ``prediction_errors``: mean relative error of their predicted time, by score mode.
    """

    partitions: tuple[PartitionSnapshot, ...]
    queued: int
    queued_tokens: int
    running: int
    in_flight: int
    in_flight_bytes: int
    paused: bool
    tick_age: float
    not_ready: tuple[str, ...]
    failure: str | None
    group: GroupView = UNDECIDED
    step: int = 0
    prediction_errors: Mapping[str, float] = field(default_factory=dict)
    histories: HistoriesSnapshot = field(default_factory=HistoriesSnapshot)
