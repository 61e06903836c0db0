"""The users that are held in the process: within bounds, the least recently used go first."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

import numpy as np

from consumer.histories.entry import Entry
from consumer.histories.history import History
from consumer.histories.items import Cap, PackedItems, pack
from consumer.histories.operation import Brought, UserKey
from consumer.histories.settings import HistorySettings
from consumer.histories.unsaved import Unsaved
from consumer.stream.partition import Partition

T = TypeVar("T")

ENTRY_BYTES = 1_000
"""Memory of a user beside the items and the user id: marks, objects."""

_LOOKS = 8


class Held(Generic[T]):
    """Not thread-safe. What ``unsaved`` holds beside the histories counts, too."""

    def __init__(self, settings: HistorySettings, cap: Cap, unsaved: Unsaved[T]) -> None:
        self._settings, self._unsaved = settings, unsaved
        self._most = cap.most + cap.drop
        self._nbytes = 0
        self._users: OrderedDict[UserKey, Entry[T] | Brought] = OrderedDict()

    def __len__(self) -> int:
        return len(self._users)

    @property
    def nbytes(self) -> int:
        """Memory of all this."""
        return self._nbytes + self._unsaved.nbytes

    def __contains__(self, user: object) -> bool:
        return user in self._users

    def __getitem__(self, user: UserKey) -> Entry[T]:
        held = self._users[user]
        return self._unpacked(user, held) if isinstance(held, Brought) else held

    def get(self, user: UserKey) -> Entry[T] | None:
        return self[user] if user in self._users else None

    def add(self, user: UserKey, entry: Entry[T]) -> None:
        self._users[user] = entry
        self.weigh(user, entry)

    def bring(self, run: Iterable[Brought], otherwise: Callable[[Brought], object]) -> int:
        """Hold what requests brought, each in the place of what one before it did. Returns how many; ``otherwise``
        takes, in its turn, one of which there is more to know first.
        """
        users, most, taken = self._users, self._most, 0
        for brought in run:
            user, items = brought.user, brought.items
            held = users.get(user)
            if not isinstance(items, np.ndarray) or len(items) > most or not (held is None or _replaces(brought, held)):
                otherwise(brought)
                continue
            if held is not None:
                self._nbytes -= held.nbytes
                users.move_to_end(user)
            brought.nbytes = ENTRY_BYTES + user.user.__sizeof__() + items.nbytes
            users[user] = brought
            self._nbytes += brought.nbytes
            taken += 1
        return taken

    def touch(self, user: UserKey) -> None:
        """It is the most recently used one now."""
        self._users.move_to_end(user)

    def users_of(self, partitions: Collection[Partition]) -> set[str]:
        """Whose records of these partitions are known."""
        return {user.user for user, held in self._users.items() if held.partition in partitions}

    def leave(self, partitions: Collection[Partition]) -> list[tuple[UserKey, Entry[T]]]:
        """These are another owner's: let go of what was brought by their requests. Returns their users' entries."""
        entries: list[tuple[UserKey, Entry[T]]] = []
        for user, held in list(self._users.items()):
            if held.partition not in partitions:
                continue
            if isinstance(held, Brought):
                self.remove(user, held)
            else:
                entries.append((user, held))
        return entries

    def weigh(self, user: UserKey, entry: Entry[T]) -> None:
        """Its history has changed."""
        nbytes = ENTRY_BYTES + user.user.__sizeof__() + (0 if entry.history is None else entry.history.nbytes)
        self._nbytes += nbytes - entry.nbytes
        entry.nbytes = nbytes

    @property
    def full(self) -> bool:
        """More is held than may be."""
        return len(self._users) > self._settings.entries or self.nbytes > self._settings.max_bytes

    def make_room(self, kept: UserKey) -> int:
        """Let idle ones go, but ``kept``. Returns how many."""
        users, most, most_bytes = self._users, self._settings.entries, self._settings.max_bytes - self._unsaved.nbytes
        gone, looks = 0, _LOOKS
        while (len(users) > most or self._nbytes > most_bytes) and looks:
            user, held = users.popitem(last=False)
            if (isinstance(held, Brought) or held.idle) and user != kept:
                self._nbytes -= held.nbytes
                gone += 1
            else:  # in use
                users[user] = held
                looks -= 1
        return gone

    def remove(self, user: UserKey, held: Entry[T] | Brought) -> None:
        del self._users[user]
        self._nbytes -= held.nbytes

    def _unpacked(self, user: UserKey, brought: Brought) -> Entry[T]:
        items = PackedItems("int", pack(brought.items), len(brought.items))
        history = History({brought.partition.number: brought.offset}, items)
        entry: Entry[T] = Entry(brought.partition, brought.epoch, history, nbytes=brought.nbytes)
        self._users[user] = entry
        self.weigh(user, entry)
        return entry


def _replaces(brought: Brought, held: object) -> bool:
    """What is held came the same way, while the partition was here."""
    return isinstance(held, Brought) and held.epoch == brought.epoch and held.partition == brought.partition
