"""The thread that keeps the resident catalog current."""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import redis

from catalog_sync.acks import ack_of
from catalog_sync.activation_guard import ActivationGuard, Breach
from catalog_sync.ancestry import QuarantineCheck
from catalog_sync.connection import connect, get_hash
from catalog_sync.kept import KeptVersions
from catalog_sync.last_good import LastGood
from catalog_sync.layout import Condemnation, Keys, Pin, Pointer
from catalog_sync.listener import Listener
from catalog_sync.loading import AskCanaries, Step, VersionLoader
from catalog_sync.pins import read_pin
from catalog_sync.quarantine import LocalQuarantine
from catalog_sync.settings import CatalogSettings
from catalog_sync.signing import TrustedKeys
from catalog_sync.state import WatcherSnapshot, WatchState
from catalog_sync.tallies import tallies
from engine.catalog.store import CatalogStore
from engine.errors import CatalogError, RequestError
from engine.request import RecallRequest, RecallResult

log = logging.getLogger(__name__)

_SLICE_SECONDS = 0.25  # longest wait for a message: how soon a stop or a dead subscription is seen


class Watcher:
    """Follows the pointer of the store's model and activates what it names.

    Whatever goes wrong, the resident version keeps serving; ``snapshot`` says what and why. Use as a context manager or
    through ``start`` and ``stop``.
    """

    def __init__(self, settings: CatalogSettings, store: CatalogStore, ask_canaries: AskCanaries | None = None) -> None:
        """Raises CatalogError ``redis`` or ``key`` for settings that make no sense."""
        self._settings = settings
        self._store = store
        self._keys = Keys(settings.namespace)
        self._redis = connect(settings)
        self._last_good = LastGood(settings.disk, store.model_id) if settings.disk else None
        # Guards the state, the quarantine and what is active: the thread changes them, so does a breach on the device
        # thread, others take snapshots.
        self._lock = threading.Lock()
        self._quarantine = LocalQuarantine(self._last_good)
        self._guard = ActivationGuard(settings.guard)
        self._pinned = False
        self._state = WatchState(
            settings.poll_seconds, settings.poll_jitter, settings.retry_seconds, time.monotonic(), random.random
        )
        self._stop = threading.Event()
        backoff = self._state.backoff(settings.poll_seconds)
        self._listener = Listener(self._redis, self._keys.notify, backoff, self._stop)
        trusted = TrustedKeys(settings.trusted_keys)
        check = QuarantineCheck(self._redis, self._keys, self._quarantine, self._lock)
        self._loader = VersionLoader(store, self._redis, self._keys, trusted, check, ask_canaries, self._stop)
        self._kept = KeptVersions(store, self._load_kept)
        self._thread = threading.Thread(target=self._run, name="catalog-watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for the Redis call in progress."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> "Watcher":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def snapshot(self) -> WatcherSnapshot:
        """The watcher's state at this moment; safe from any thread."""
        with self._lock:
            state = self._state
            return WatcherSnapshot(
                state=state.state,
                active=self._store.active,
                previous=self._store.previous,
                generation=state.generation,
                target=state.target.version if state.target else None,
                reason=state.reason,
                error=state.error,
                activated=state.activated,
                refused=dict(state.refused),
                polls=state.polls,
                notices=state.notices,
                reconnects=state.reconnects,
                staleness_seconds=state.staleness(time.monotonic()),
                resident_bytes=self._store.resident_bytes(),
                pinned=self._pinned,
                rolled_back=state.rolled_back,
                sizes=self._store.sizes(),
                condemned=self._quarantine.reasons(),
                kept=self._kept.states(),
            )

    def observe(self, requests: Sequence[RecallRequest], answers: Sequence[RecallResult | RequestError]) -> None:
        """Answers of the engine, from the device thread; if they condemn a new version, it is rolled back at once."""
        if not self._settings.guard_requests:
            return
        try:
            for version, tally in tallies(requests, answers, self._store.active).items():
                with self._lock:
                    breach = self._guard.observe(version, tally, time.monotonic())
                    if breach is not None and breach.version == self._store.active:
                        self._roll_back(breach)
        except Exception:  # it must not end the thread that answers requests
            log.exception("the answers of a batch could not be judged")

    def _run(self) -> None:
        try:
            if self._last_good is not None:
                self._shield(self._last_good.tidy)
            self._shield(self._quarantine.load)
            self._shield(self._turn)
            if self._store.active is None:
                self._shield(self._start_from_disk)
            while not self._stop.is_set():
                self._shield(self._turn)
        finally:
            self._loader.close()
            self._listener.close()
            self._redis.close()

    def _shield(self, step: Callable[[], None]) -> None:
        """Nothing that goes wrong may end the thread or touch what serves."""
        try:
            step()
        except Exception as error:
            with self._lock:
                self._state.fail(_as_refusal(error), time.monotonic())

    def _turn(self) -> None:
        """Wait for a message or the next poll, then act on the pointer if it is time."""
        self._listen()
        self._write_quarantine()
        if self._wait() <= 0:
            self._follow()

    def _listen(self) -> None:
        heard = self._listener.wait(min(self._wait(), _SLICE_SECONDS))
        with self._lock:
            self._state.reconnects = self._listener.lost
            if heard == "subscribed":
                self._state.subscribed(time.monotonic())
            elif heard == "notice":
                self._state.notice(time.monotonic())

    def _follow(self) -> None:
        """Read what should serve and make it active, then see to what the group keeps."""
        pointer = Pointer.read(get_hash(self._redis, self._keys.current(self._store.model_id)))
        pin = read_pin(self._redis, self._keys, self._settings.group)
        with self._lock:
            self._pinned = pin is not None and pin.serve is not None
            target = self._state.pointer_read(_named_by(pin) or pointer, time.monotonic())
        if target is not None:
            self._tell()
            self._take(target)
        self._kept.follow(pin)
        self._acknowledge()

    def _take(self, target: Pointer) -> None:
        try:
            loaded = self._loader.load(target, self._reached)
            with self._lock:
                self._activate(target.version, loaded.ancestors)
        except Exception as error:  # any fault is a refusal with a reason
            self._refuse(target, _as_refusal(error))
            return
        log.info("catalog %s is active (generation %d)", target.version, target.generation)
        self._save(target.version, loaded.files)

    def _activate(self, version: str, ancestors: frozenset[str]) -> None:
        if bad := next((each for each in ancestors if self._quarantine.get(each)), None):
            self._store.unstage()
            raise CatalogError("quarantined", f"it is a change of version {bad}, which was found bad meanwhile")
        active, previous, now = self._store.active, self._store.previous, time.monotonic()
        good = True
        if active is None or version == previous:  # there is none to go back to, or it served before
            self._guard.dismiss()
        elif version != active:
            good = self._guard.activated(version, now, ancestors)
        self._store.activate(version, keep_previous=not good)
        self._state.activate(now)

    def _refuse(self, target: Pointer, refusal: CatalogError) -> None:
        log.warning("catalog %s is refused (%s): %s", target.version, refusal.reason, refusal.message)
        with self._lock:
            self._state.refuse(refusal, time.monotonic())
            if refusal.reason == "canary":
                self._condemn(target.version, refusal, target.generation)

    def _load_kept(self, target: Pointer) -> None:
        try:
            self._loader.load(target, lambda _: None)
        except Exception as error:
            refusal = _as_refusal(error)
            log.warning("catalog %s is not kept (%s): %s", target.version, refusal.reason, refusal.message)
            raise refusal from error

    def _reached(self, step: Step) -> None:
        with self._lock:
            self._state.reach(step)
        self._tell()

    def _roll_back(self, breach: Breach) -> None:
        """Serve the version before again; needs nothing but this process's memory. Called under the lock."""
        since = f"; the deltas since {breach.first} are not told apart" if breach.first != breach.version else ""
        error = CatalogError(breach.reason, breach.message + since)
        back = self._store.rollback()
        self._store.discard(breach.version)
        self._state.roll_back(breach.version, error)
        self._condemn(breach.first, error, self._state.generation)
        self._state.hurry(time.monotonic())
        log.error("catalog %s is rolled back to %s (%s): %s", breach.version, back, error.reason, error.message)

    def _condemn(self, version: str, error: CatalogError, generation: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        self._quarantine.condemn(Condemnation(version, error.reason, error.message, generation, now_ms))

    def _write_quarantine(self) -> None:
        with self._lock:
            records, active = self._quarantine.unwritten(), self._store.active
        if records:  # without the lock: the device thread must not wait for a disk
            self._quarantine.write(records)
            if active is not None:
                self._save(active, None)  # it is what a start without Redis should take

    def _save(self, version: str, files: Mapping[str, memoryview] | None) -> None:
        if self._last_good is not None:
            try:
                self._last_good.save(version, files, keep=self._store.resident())
            except OSError as error:
                log.warning("the last-good copy could not be written: %s", error)

    def _start_from_disk(self) -> None:
        """Serve the newest of the kept copies that is whole and fits."""
        for chain in self._last_good.load() if self._last_good else ():
            version = chain[-1].version
            try:
                self._store.stage(*chain)
                self._store.activate(version)
            except CatalogError as error:
                log.warning("the copy of %s is refused (%s): %s", version, error.reason, error.message)
            else:
                log.info("catalog %s is active from its copy on disk", version)
                return

    def _acknowledge(self) -> None:
        ack = ack_of(self._settings, self._store.model_id, self.snapshot(), time.time_ns() // 1_000_000)
        lifetime = int(max(60.0, 4 * self._settings.poll_seconds))
        try:
            self._redis.set(self._keys.ack(self._settings.instance), msgspec.json.encode(ack), ex=lifetime)
        except redis.ResponseError as error:  # not allowed to write, or Redis is full: reading goes on
            log.warning("the ack could not be written: %s", error)

    def _tell(self) -> None:
        """An ack on the way to a version; going on matters more."""
        try:
            self._acknowledge()
        except redis.RedisError as error:
            log.info("an ack could not be written: %s", error)

    def _wait(self) -> float:
        with self._lock:
            return self._state.wait(time.monotonic())


def _as_refusal(error: Exception) -> CatalogError:
    if isinstance(error, CatalogError):
        return error
    if isinstance(error, redis.RedisError | OSError):
        return CatalogError("unreachable", f"Redis: {error}")
    log.error("the catalog watcher met a fault", exc_info=error)
    return CatalogError("internal", repr(error))


def _named_by(pin: Pin | None) -> Pointer | None:
    """What a pin puts in the pointer's place."""
    if pin is None or pin.serve is None:
        return None
    return Pointer(pin.serve.version, pin.generation, pin.serve.manifest)
