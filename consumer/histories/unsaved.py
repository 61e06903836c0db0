"""What the store of histories does not have yet, and the writes that bring it there."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from consumer.histories.entry import Entry
from consumer.histories.history import History, marks_of
from consumer.histories.items import pack
from consumer.histories.operation import Operation, UserKey, Write
from consumer.histories.settings import HistorySettings

T = TypeVar("T")

MAX_CHUNKS = 64
"""Then a history is written whole, so that reading it stays one short answer."""

_WRITE_BYTES = 4 << 20
_OPERATION_BYTES = 1_500
"""Memory of a record beside its bytes and ids."""


class Unsaved(Generic[T]):
    """``at_risk``: records that were released and are not in the store, which take ``nbytes`` of memory that nothing
    else counts any more. Not thread-safe.
    """

    def __init__(self, settings: HistorySettings, clock: Callable[[], float]) -> None:
        self.at_risk = self.nbytes = 0
        self._delay = settings.write_behind_ms / 1000 if settings.store == "write-behind" else 0.0
        self._clock = clock
        self._users: dict[UserKey, Entry[T]] = {}

    def __len__(self) -> int:
        return len(self._users)

    def lag(self) -> float:
        """Age in seconds of the oldest record."""
        since = (entry.unsaved_since for entry in self._users.values())
        oldest = min((at for at in since if at is not None), default=None)
        return 0.0 if oldest is None else self._clock() - oldest

    def add(self, user: UserKey, entry: Entry[T], operation: Operation[T]) -> None:
        """It was applied, or stands behind one that was."""
        entry.unsaved.append(operation)
        if operation.released:
            self.risk(operation)
        self.soil(user, entry)

    def risk(self, operation: Operation[T]) -> None:
        """It is released from now on."""
        self.at_risk += 1
        self.nbytes += _OPERATION_BYTES + operation.size

    def risk_no_more(self, operations: Iterable[Operation[T]]) -> None:
        """Those of them that were released are in the store, or are counted anew."""
        for each in operations:
            if each.released:
                self.at_risk -= 1
                self.nbytes -= _OPERATION_BYTES + each.size

    def soil(self, user: UserKey, entry: Entry[T]) -> None:
        """The store is to be written for this user."""
        if entry.unsaved_since is None:
            entry.unsaved_since = self._clock()
            self._users[user] = entry

    def take(self, most: int, *, at_once: bool) -> list[Write]:
        """Writes that are due; ``at_once``: all there are."""
        due = self._clock() - (0.0 if at_once else self._delay)
        writes: list[Write] = []
        size = 0
        for user, entry in self._users.items():
            if entry.history is None or entry.unsaved_since is None:
                continue
            if entry.unsaved_since > due and all(each.released for each in entry.unsaved):
                continue
            write = _write(user, entry, entry.history)
            writes.append(write)
            size += len(write.packed)
            if len(writes) >= most or size >= _WRITE_BYTES:
                break
        return writes

    def saved(self, entry: Entry[T], write: Write) -> list[Operation[T]]:
        """The store took this write. Returns records that are released by that."""
        saved, entry.unsaved = entry.unsaved[: write.records], entry.unsaved[write.records :]
        self.risk_no_more(saved)
        released = [each for each in saved if not each.released]
        for each in released:
            each.released = True
        entry.head, entry.whole, entry.stored = write.head, False, write.stored
        entry.chunks = write.index + 1
        entry.base = dict(marks_of(write.head))
        entry.unsaved_since = entry.unsaved[0].since if entry.unsaved else None
        if not entry.unsaved:
            del self._users[write.user]
        return released

    def take_back(self, user: UserKey, entry: Entry[T]) -> list[Operation[T]]:
        """The history is another one: these are to be applied anew."""
        again, entry.unsaved, entry.unsaved_since = entry.unsaved, [], None
        self._users.pop(user, None)
        self.risk_no_more(again)
        return again


def _write(user: UserKey, entry: Entry[T], history: History) -> Write:
    applied = [each for each in entry.unsaved if each.applied]
    anew = any(each.change in ("set", "forget") for each in applied)
    whole = entry.whole or anew or not entry.head or entry.chunks >= MAX_CHUNKS
    items = history.items
    if whole:
        packed, stored, index = (b"", 0, 0) if items is None else (items.packed, items.count, 0)
    else:
        packed = b"".join([pack(each.items) for each in applied])
        stored = entry.stored + sum(len(each.items) for each in applied)
        index = entry.chunks
    head = history.head(stored)
    return Write(user, entry.head, head, whole, index, packed, items is not None, len(entry.unsaved), stored)
