"""One user as the keeper knows it, and what the keeper counts."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from consumer.histories.history import History
from consumer.histories.operation import Operation
from consumer.stream.partition import Partition

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """Totals since the start. A request finds its history held (``hits``), or it is looked up (``misses``); ``needed``:
    it was told that there is none.
    """

    hits: int = 0
    misses: int = 0
    loads: int = 0
    needed: int = 0
    applied: int = 0
    duplicates: int = 0
    evicted: int = 0
    writes: int = 0
    conflicts: int = 0
    forgotten: int = 0


class Entry(msgspec.Struct, Generic[T], eq=False):
    """``history`` is none until it is read from the store. ``unsaved``: operations that are not in the store yet."""

    partition: Partition
    epoch: int
    history: History | None = None
    parked: list[Operation[T]] = msgspec.field(default_factory=list)
    unsaved: list[Operation[T]] = msgspec.field(default_factory=list)
    unsaved_since: float | None = None
    base: dict[int, int] = msgspec.field(default_factory=dict)
    """Marks that the store is known to have had."""
    ours: History | None = None
    """What was here before the store is read again."""
    head: bytes = b""
    chunks: int = 0
    stored: int = 0
    whole: bool = False
    nbytes: int = 0

    @property
    def idle(self) -> bool:
        return self.history is not None and self.unsaved_since is None and not self.parked
