"""Users' histories between the threads: intake brings records, the store thread what Redis says of them.

A record that changes a history is not finished before the copy in Redis is as durable as the settings ask: what it came
to is held back until then.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from consumer.histories.entry import Counts
from consumer.histories.items import Cap
from consumer.histories.keeper import Keeper
from consumer.histories.operation import Brought, Effects, Operation
from consumer.histories.settings import HistorySettings, Store
from consumer.histories.store import HistoryStore, StoreError
from consumer.serving.in_flight import Done, InFlight, Job, Outcome
from consumer.serving.reader import RequestReader
from consumer.stream.partition import Partition
from engine.errors import RequestError

_AT_ONCE = 256
_IDLE_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HistoriesSnapshot:
    """``lag``: seconds that the oldest record has waited for the store. ``trouble``: why the store does not answer."""

    store: Store = "off"
    users: int = 0
    bytes: int = 0
    lookups: int = 0
    unsaved: int = 0
    at_risk: int = 0
    lag: float = 0.0
    errors: int = 0
    trouble: str | None = None
    counts: Counts = field(default_factory=Counts)


class Histories:
    """``queue`` takes requests that are ready, ``send`` what needs no engine; ``forget`` the users to be forgotten,
    ``lost`` those who are another owner's now.

    ``answer`` may be called from any thread, ``run`` and ``stop`` are the store thread's, the others the intake's.
    """

    def __init__(
        self,
        settings: HistorySettings,
        cap: Cap,
        store: HistoryStore | None,
        reader: RequestReader,
        queue: Callable[[Sequence[InFlight]], None],
        send: Callable[[Sequence[Job]], None],
        expired: Callable[[Sequence[InFlight]], None],
        forget: Callable[[str], object],
        lost: Callable[[Collection[str]], object],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._store = store
        self._reader = reader
        self._queue = queue
        self._send = send
        self._expired = expired
        self._forget = forget
        self._lost = lost
        self._clock = clock
        self._keeper: Keeper[InFlight] = Keeper(settings, cap, clock)
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._hurried = False
        self._errors = 0
        self._trouble: str | None = None

    def snapshot(self) -> HistoriesSnapshot:
        """The state now; from any thread."""
        with self._lock:
            keeper = self._keeper
            return HistoriesSnapshot(
                self._settings.store,
                len(keeper),
                keeper.nbytes,
                keeper.lookups,
                keeper.unsaved,
                keeper.at_risk,
                keeper.lag(),
                self._errors,
                self._trouble,
                replace(keeper.counts),
            )

    def answer(self, jobs: Sequence[Job]) -> None:
        """Send them, each once the store has what its record changed."""
        if self._store is not None:
            jobs = [job for job in jobs if not self._is_kept(job)]
        self._send(jobs)

    def _is_kept(self, job: Job) -> bool:
        item = job.item
        if item.saving:
            with self._gate:
                if item.saving:
                    item.pending = job
                    return True
        return False

    # --- the intake thread ----------------------------------------------------------------------------------------

    def admit(self, reads: Iterable[InFlight | Job]) -> list[InFlight]:
        """Take what was read together, in the order of each partition. Returns the requests that can be queued."""
        ready: list[InFlight] = []
        answered: list[Job] = []
        brought: list[Brought] = []
        for read in reads:
            item = read if isinstance(read, InFlight) else read.item
            operation, item.operation = item.operation, None  # one that knows the item would be a cycle with it
            if isinstance(operation, Brought) and self._store is None:
                brought.append(operation)
            elif operation is not None:
                if isinstance(operation, Brought):
                    operation = operation.operation(item, item.admitted, item.size)
                self._bring(brought)  # its user's may be among them
                brought = []
                told = operation.told
                ready += self._submit(operation)
                if not told:
                    continue
            if isinstance(read, InFlight):
                ready.append(read)
            else:
                answered.append(read)
        self._bring(brought)
        if answered:
            self.answer(answered)
        return ready

    def _bring(self, brought: list[Brought]) -> None:
        if brought:
            with self._lock:
                self._keeper.bring(brought)

    def _submit(self, operation: Operation[InFlight]) -> list[InFlight]:
        item = operation.tag
        item.saving = self._store is not None and operation.change is not None
        if operation.change == "forget":
            self._forget(operation.user.user)
        with self._lock:
            effects = self._keeper.submit(operation)
            due = self._keeper.lookups or (self._keeper.unsaved and self._settings.store == "write-through")
        ready = self._carry_out(effects)
        if due or item.saving:
            self._wake.set()
        return ready

    def sweep(self, now: float) -> None:
        """Answer requests that have waited long enough for their history."""
        if self._store is None or not self._keeper.lookups:
            return
        with self._lock:
            late = [each for each in self._keeper.parked() if not each.told and each.waits and each.tag.deadline <= now]
            for each in late:
                each.told = True
            effects = self._keeper.give_up(now - self._settings.lookup_ms / 1000)
        if late:
            self._expired([each.tag for each in late])
        self._carry_out(effects)

    def cancel(self, unwanted: Callable[[InFlight], bool]) -> list[InFlight]:
        """Requests that wait for their history and are answered otherwise now; what they append stays."""
        with self._lock:
            found = [each for each in self._keeper.parked() if not each.told and each.waits and unwanted(each.tag)]
            for each in found:
                each.told = True
        return [each.tag for each in found]

    def drop(self, partitions: Collection[Partition]) -> list[InFlight]:
        """These are another owner's now. Returns records that are never answered here."""
        with self._lock:
            users = self._keeper.users_of(partitions)
            gone = self._keeper.drop(partitions)
        if users:
            self._lost(users)
        untold = [each.tag for each in gone if not each.told]
        for each in gone:
            self._release(each.tag)
        return untold

    def unflushed(self) -> bool:
        """Whether records wait for a store that answers; asks for them to be written at once."""
        if self._store is None or self._trouble is not None or not self._keeper.unsaved:
            return False
        self._hurried = True
        self._wake.set()
        return True

    # --- the store thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until stopped."""
        if self._store is not None:
            with closing(self._store):
                self._serve(self._store)

    def _serve(self, store: HistoryStore) -> None:
        pause = 0.0
        delay = self._settings.write_behind_ms / 1000 if self._settings.store == "write-behind" else _IDLE_S
        while not self._stopped.is_set():
            if self._exchange(store):
                pause = 0.0
                if self._wake.wait(min(max(delay, 0.001), _IDLE_S)):
                    self._wake.clear()
            else:
                pause = min(max(_FIRST_PAUSE_S, 2 * pause), _LONGEST_PAUSE_S)
                self._stopped.wait(pause)

    def stop(self) -> None:
        """End the loop; what is not written by then stays unwritten."""
        self._stopped.set()
        self._wake.set()

    def _exchange(self, store: HistoryStore) -> bool:
        """Write and read what is due until nothing is. False: the store does not answer."""
        while not self._stopped.is_set():
            with self._lock:
                writes = self._keeper.take_writes(_AT_ONCE, at_once=self._hurried)
                users = self._keeper.take_loads(_AT_ONCE)
                self._hurried = self._hurried and bool(self._keeper.unsaved)
            if not writes and not users:
                return True
            try:
                done, found = store.exchange(writes, users)
            except StoreError as error:
                self._fail(error)
                return False
            if self._trouble is not None:
                log.info("the store of histories answers again")
                self._trouble = None
            with self._lock:
                effects = [self._keeper.written(write, done=ok) for write, ok in zip(writes, done, strict=True)]
                effects += [self._keeper.loaded(user, stored) for user, stored in zip(users, found, strict=True)]
            ready = [item for each in effects for item in self._carry_out(each)]
            if ready:
                self._queue(ready)
        return True

    def _fail(self, error: StoreError) -> None:
        self._errors += 1
        if self._trouble is None:
            log.warning("the store of histories does not answer: %s", error)
        self._trouble = str(error)
        with self._lock:
            effects = self._keeper.failed()
        self._carry_out(effects)

    # --- either ---------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Effects[InFlight]) -> list[InFlight]:
        """Returns requests that have their history now."""
        ready: list[InFlight] = []
        answered: list[Job] = []
        for told in effects.told:
            item, came = told.tag, told.came
            if isinstance(came, RequestError):
                answered.append(Outcome(item, came, "validate"))
            elif came is None:
                answered.append(Done(item))
            else:
                resumed = self._reader.resume(item, came)
                if isinstance(resumed, InFlight):
                    ready.append(resumed)
                else:
                    answered.append(resumed)
        self.answer(answered)
        for item in effects.released:
            self._release(item)
        return ready

    def _release(self, item: InFlight) -> None:
        with self._gate:
            item.saving = False
            job, item.pending = item.pending, None
        if job is not None:
            self._send([job])
