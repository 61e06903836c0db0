"""The histories held in this process, in step with a store. Pure: the caller brings the time, the lock and the store.

A history is the work of the log: whoever applies a user's records in their order comes to the same one, and its marks
say how far it has come. So what was applied twice is left out, and a write that finds other marks in the store than it
was made from is not done: the store is read again, and what is not in it yet is applied to that.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Generic, TypeVar, cast

from consumer.histories.entry import Counts, Entry
from consumer.histories.held import Held
from consumer.histories.history import History
from consumer.histories.items import Cap
from consumer.histories.lookups import Lookups
from consumer.histories.operation import Brought, Effects, Operation, Stored, Told, UserKey, Write
from consumer.histories.settings import HistorySettings
from consumer.histories.unsaved import Unsaved
from consumer.stream.partition import Partition
from engine.errors import RequestError

T = TypeVar("T")


class Keeper(Generic[T]):
    """Not thread-safe. ``cap`` is the model's."""

    def __init__(self, settings: HistorySettings, cap: Cap, clock: Callable[[], float]) -> None:
        self.counts = Counts()
        self._settings = settings
        self._cap = cap
        self._clock = clock
        self._durable = settings.store != "off"
        self._behind = settings.store == "write-behind"
        self._unsaved: Unsaved[T] = Unsaved(settings, clock)
        self._held: Held[T] = Held(settings, cap, self._unsaved)
        self._epochs: dict[Partition, int] = {}
        self._lookups = Lookups()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Memory of what is held."""
        return self._held.nbytes

    @property
    def lookups(self) -> int:
        """Users whose history is being read from the store."""
        return len(self._lookups)

    def lag(self) -> float:
        """Age in seconds of the oldest record that is not in the store."""
        return self._unsaved.lag()

    @property
    def unsaved(self) -> int:
        """Users with records that the store does not have."""
        return len(self._unsaved)

    @property
    def at_risk(self) -> int:
        """Records that were released and are not in the store yet."""
        return self._unsaved.at_risk

    # --- records --------------------------------------------------------------------------------------------------

    def submit(self, operation: Operation[T]) -> Effects[T]:
        """A record, in the order of its partition."""
        effects: Effects[T] = Effects()
        self._epochs[operation.partition] = operation.epoch
        entry = self._entry(operation)
        if entry.history is None:
            operation.looked_up = True
            entry.parked.append(operation)
        else:
            self._apply(operation.user, entry, entry.history, operation, effects)
            self._remove_if_over(operation.user, entry)
            self.counts.evicted += self._held.make_room(operation.user)
        return effects

    def bring(self, run: Sequence[Brought]) -> None:
        """The same for requests that bring their whole history, where there is no store.

        Nothing but the history comes of it, and only if it is asked for.
        """
        for each in run:  # first: of who comes by two partitions, neither has been elsewhere meanwhile
            self._epochs[each.partition] = each.epoch
        taken = self._held.bring(run, lambda each: self.submit(each.operation(cast(T, None))))  # nobody hears of it
        self.counts.applied += taken  # beside what submit has counted for itself
        if run:
            self.counts.evicted += self._held.make_room(run[-1].user)

    def users_of(self, partitions: Collection[Partition]) -> set[str]:
        """Users of these partitions, as far as they are held."""
        return self._held.users_of(partitions)

    def drop(self, partitions: Collection[Partition]) -> list[Operation[T]]:
        """These are another owner's now: forget what was held. Returns what was not applied.

        What is applied and not in the store is still written; the store takes it unless the new owner was first.
        """
        for partition in partitions:
            self._epochs.pop(partition, None)
        gone: list[Operation[T]] = []
        for user, entry in self._held.leave(partitions):
            gone += [each for each in entry.parked if not each.released]
            entry.parked = [each for each in entry.parked if each.released]
            self._remove_if_over(user, entry)
        return gone

    def parked(self) -> Iterator[Operation[T]]:
        """Operations that wait for a history from the store."""
        for user in self._lookups.users():
            if entry := self._held.get(user):
                yield from entry.parked

    def give_up(self, before: float) -> Effects[T]:
        """Requests that have waited for a history since ``before``, or longer, are told that there is none."""
        effects: Effects[T] = Effects()
        for late in [each for each in self.parked() if each.waits and not each.told and each.since <= before]:
            self._held[late.user].parked.remove(late)
            self._tell(late, RequestError("need_history", "the history could not be read in time"), effects)
            effects.released.append(late.tag)
            self.counts.needed += 1
        return effects

    # --- the store ------------------------------------------------------------------------------------------------

    def take_loads(self, most: int) -> list[UserKey]:
        """Users to be read from the store; each is to be given to ``loaded`` or, all of them, to ``failed``."""
        return self._lookups.take(most)

    def take_writes(self, most: int, *, at_once: bool = False) -> list[Write]:
        """Writes that are due, each to be given to ``written`` unless the store fails; ``at_once``: all there are."""
        return self._unsaved.take(most, at_once=at_once)

    def loaded(self, user: UserKey, stored: Stored) -> Effects[T]:
        """The store's answer to a look-up."""
        effects: Effects[T] = Effects()
        entry = self._held.get(user)
        valid = self._lookups.answered(user)
        if entry is None or entry.history is not None:
            return effects
        if not valid:  # asked before its partition went away and came back
            self._lookups.want(user)
            return effects
        self.counts.loads += 1
        entry.head, entry.chunks, entry.stored = stored.head, stored.chunks, stored.count
        if entry.ours is not None and not stored.history.covers(entry.base):  # it has lost what it had
            entry.history, entry.whole = entry.ours, True
            entry.base = dict(stored.history.marks)
            self._unsaved.soil(user, entry)
        else:
            entry.history, entry.base, entry.whole = stored.history, dict(stored.history.marks), stored.damaged
            for each in self._unsaved.take_back(user, entry):
                each.applied = False
                self._apply(user, entry, entry.history, each, effects)
        entry.ours = None
        parked, entry.parked = entry.parked, []
        self._unsaved.risk_no_more(parked)
        for each in parked:
            self._apply(user, entry, entry.history, each, effects)
        self._held.weigh(user, entry)
        self._remove_if_over(user, entry)
        self.counts.evicted += self._held.make_room(user)
        return effects

    def failed(self) -> Effects[T]:
        """The store does not answer: look-ups stay wanted. Write-behind lets events pass that wait for one."""
        effects: Effects[T] = Effects()
        self._lookups.failed(self._held)
        if self._behind:
            for each in self.parked():
                if each.change in ("append", "set"):
                    self._release(each, effects)
                    if each.released:
                        self._tell(each, None, effects)
        return effects

    def written(self, write: Write, *, done: bool) -> Effects[T]:
        """The store's answer to a write; not ``done``: it had another head."""
        effects: Effects[T] = Effects()
        user, entry = write.user, self._held[write.user]
        if not done:
            self.counts.conflicts += 1
            self._read_again(user, entry)
            return effects
        self.counts.writes += 1
        effects.released += [each.tag for each in self._unsaved.saved(entry, write)]
        self._remove_if_over(user, entry)
        return effects

    # --- within ---------------------------------------------------------------------------------------------------

    def _entry(self, operation: Operation[T]) -> Entry[T]:
        user, partition, epoch = operation.user, operation.partition, operation.epoch
        entry = self._held.get(user)
        if entry is None:
            entry = Entry(partition, epoch)
            self._held.add(user, entry)
            self._begin(user, entry)
        else:
            self._held.touch(user)
            if self._epochs.get(entry.partition) != entry.epoch:  # its partition has been elsewhere meanwhile
                if entry.idle:
                    entry.base = {}
                self._begin(user, entry)
        entry.partition, entry.epoch = partition, epoch
        return entry

    def _begin(self, user: UserKey, entry: Entry[T]) -> None:
        if self._durable:
            self._read_again(user, entry)
        else:
            entry.history = History()

    def _read_again(self, user: UserKey, entry: Entry[T]) -> None:
        if entry.history is not None:
            entry.ours, entry.history = entry.history, None
        self._lookups.want(user)

    def _apply(
        self, user: UserKey, entry: Entry[T], history: History, operation: Operation[T], effects: Effects[T]
    ) -> None:
        change, number = operation.change, operation.partition.number
        if change is None:
            self._answer(operation, history, effects)
            effects.released.append(operation.tag)
            return
        if history.has(number, operation.offset):
            self.counts.duplicates += not operation.told
            self._answer(operation, history, effects)
        elif change == "extend" and history.items is None:
            self._answer(operation, history, effects)
        elif fault := history.fault(change, operation.items):
            self._tell(operation, RequestError("bad_request", f"items: {fault}"), effects)
        else:
            history.apply(change, operation.items, number, operation.offset, self._cap)
            operation.applied = True
            self.counts.applied += 1
            self.counts.forgotten += change == "forget"
            self._held.weigh(user, entry)
            self._answer(operation, history, effects)
        if self._durable and (operation.applied or entry.unsaved_since is not None):
            self._unsaved.add(user, entry, operation)
            if self._behind and change != "forget":
                self._release(operation, effects)
        elif not operation.released:
            operation.released = True
            effects.released.append(operation.tag)

    def _answer(self, operation: Operation[T], history: History, effects: Effects[T]) -> None:
        if operation.told:
            return
        if not operation.waits:
            self._tell(operation, None, effects)
            return
        items = history.snapshot()
        if items is None:
            self.counts.needed += 1
        elif operation.looked_up:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        need = "no history is held for this user: send it whole"
        self._tell(operation, RequestError("need_history", need) if items is None else items, effects)

    @staticmethod
    def _tell(operation: Operation[T], came: object, effects: Effects[T]) -> None:
        if not operation.told:
            operation.told = True
            effects.told.append(Told(operation.tag, came))  # type: ignore[arg-type]

    def _release(self, operation: Operation[T], effects: Effects[T]) -> None:
        """What may be lost from now on, unless too much may be already, or there is no memory for it."""
        if operation.released or self.at_risk >= self._settings.unsaved_records:
            return
        operation.released = True
        self._unsaved.risk(operation)
        self.counts.evicted += self._held.make_room(operation.user)
        if self._held.full:
            self._unsaved.risk_no_more([operation])
            operation.released = False
        else:
            effects.released.append(operation.tag)

    def _remove_if_over(self, user: UserKey, entry: Entry[T]) -> None:
        """Nothing of it is left to be done, and its partition is another's, or nothing is known of this user: whoever
        asks for users that do not exist must not drive out those that do.
        """
        if entry.unsaved_since is not None or entry.parked:
            return
        history = entry.history
        if self._epochs.get(entry.partition) != entry.epoch or (history is not None and history.empty):
            self._held.remove(user, entry)
            self._lookups.unwanted(user)
