"""What a record wants of a user's history, what comes of it, and what passes between the keeper and the store."""

from typing import Generic, TypeVar

import msgspec

from consumer.histories.history import Change, History
from consumer.stream.partition import Partition
from engine.errors import RequestError
from engine.request import NO_ITEMS, ItemIds

T = TypeVar("T")


class UserKey(msgspec.Struct, frozen=True, gc=False):
    """A user's records have an order within a topic, so each topic has a history of its own."""

    topic: str
    user: str


class Operation(msgspec.Struct, Generic[T], eq=False):
    """One record. ``change`` is none for a request that only reads; ``waits``: it is answered from the history.

    ``since``: when it was read, seconds of the clock; ``size``: bytes of its record and ids. The rest is the keeper's:
    ``told`` what came of it, ``released`` to be committed, ``applied`` to the history, ``looked_up`` in the store.
    """

    tag: T
    user: UserKey
    partition: Partition
    epoch: int
    offset: int
    change: Change | None
    since: float
    items: ItemIds = NO_ITEMS
    waits: bool = False
    told: bool = False
    released: bool = False
    applied: bool = False
    looked_up: bool = False
    size: int = 0


class Brought(msgspec.Struct, eq=False, gc=False):
    """A whole history as a request brings it, which has its answer from that. Held as it is where there is no store:
    it becomes an entry when somebody wants to know; of most nobody does. ``nbytes``: memory, once it is held.
    """

    user: UserKey
    partition: Partition
    epoch: int
    offset: int
    items: ItemIds
    nbytes: int = 0

    def operation(self, tag: T, since: float = 0.0, size: int = 0) -> Operation[T]:
        """The same as any other record."""
        return Operation(
            tag, self.user, self.partition, self.epoch, self.offset, "set", since, self.items, told=True, size=size
        )


class Told(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """What came of an operation: the history that its request sees (none if it needs none), or why there is none."""

    tag: T
    came: ItemIds | RequestError | None


class Effects(msgspec.Struct, Generic[T], eq=False):
    """``told``, in the order of each user's records; ``released``: nothing of these can be lost any more."""

    told: list[Told[T]] = msgspec.field(default_factory=list)
    released: list[T] = msgspec.field(default_factory=list)


class Write(msgspec.Struct, frozen=True, eq=False):
    """Store ``packed`` as chunk ``index`` if the head there is ``expected``; ``whole``: in the place of all chunks.

    ``records``: so many operations are saved by it; ``stored``: items in the store afterwards.
    """

    user: UserKey
    expected: bytes
    head: bytes
    whole: bool
    index: int
    packed: bytes
    held: bool
    records: int
    stored: int


class Stored(msgspec.Struct, frozen=True, eq=False):
    """What the store has of a user: ``head`` is empty if nothing, ``damaged``: what is there is to be replaced."""

    history: History
    head: bytes
    chunks: int
    count: int
    damaged: bool = False
