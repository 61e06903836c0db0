"""The thread that keeps the resident catalog current."""

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import redis
from redis.client import PubSub

from catalog_sync.connection import connect, get_hash, subscribe
from catalog_sync.fetch import decode_as, fetch_blob, fetch_manifest
from catalog_sync.last_good import LastGood
from catalog_sync.layout import Ack, Keys, Pointer
from catalog_sync.settings import CatalogSettings
from catalog_sync.state import WatcherSnapshot, WatchState
from engine.catalog.store import CatalogStore, free_memory_of_host
from engine.errors import CatalogError

log = logging.getLogger(__name__)

_SLICE_SECONDS = 0.25  # longest wait for a message: how soon a stop or a dead subscription is seen
_UNANSWERED_PINGS = 2


class Watcher:
    """Follows the pointer of the store's model and activates what it names.

    Whatever goes wrong, the resident version keeps serving; ``snapshot`` says what and why. Use as a context manager or
    through ``start`` and ``stop``.
    """

    def __init__(self, settings: CatalogSettings, store: CatalogStore) -> None:
        self._settings = settings
        self._store = store
        self._keys = Keys(settings.namespace)
        self._redis = connect(settings)
        self._subscription: PubSub | None = None
        self._subscribe_at = 0.0
        self._last_good = LastGood(settings.disk, store.model_id) if settings.disk else None
        self._lock = threading.Lock()  # guards the state: the thread changes it, others take snapshots
        self._state = WatchState(
            settings.poll_seconds, settings.poll_jitter, settings.retry_seconds, time.monotonic(), random.random
        )
        self._subscribe_backoff = self._state.backoff(settings.poll_seconds)
        self._stop = threading.Event()
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
            )

    def _run(self) -> None:
        try:
            if self._last_good is not None:
                self._guard(self._last_good.tidy)
            self._guard(self._turn)
            if self._store.active is None:
                self._guard(self._start_from_disk)
            while not self._stop.is_set():
                self._guard(self._turn)
        finally:
            self._unsubscribe()
            self._redis.close()

    def _guard(self, step: Callable[[], None]) -> None:
        """Nothing that goes wrong may end the thread or touch what serves."""
        try:
            step()
        except Exception as error:
            with self._lock:
                self._state.fail(_as_refusal(error), time.monotonic())

    def _turn(self) -> None:
        """Wait for a message or the next poll, then act on the pointer if it is time."""
        self._listen()
        if self._wait() <= 0:
            self._follow()

    def _listen(self) -> None:
        """Wait a little for a message; without a subscription (it is retried with pauses) only wait."""
        pause = min(self._wait(), _SLICE_SECONDS)
        if self._subscription is None and time.monotonic() < self._subscribe_at:
            self._stop.wait(pause)
            return
        try:
            if self._subscription is None:
                self._subscription = subscribe(self._redis, self._keys.notify)
            message = self._subscription.get_message(timeout=pause)
            if self._subscription.health_check_response_counter > _UNANSWERED_PINGS:
                raise redis.ConnectionError("the subscription does not answer")
        except Exception as error:  # whatever it is, a new subscription has the best chance
            log.info("the subscription is lost: %r", error)
            self._unsubscribe()
            self._subscribe_at = time.monotonic() + self._subscribe_backoff.pause()
            with self._lock:
                self._state.reconnects += 1
            return
        if message is None:
            return
        with self._lock:
            if message["type"] == "subscribe":
                self._subscribe_backoff.reset()
                self._state.subscribed(time.monotonic())
            else:
                self._state.notice(time.monotonic())

    def _follow(self) -> None:
        """Read the pointer and make its version active."""
        pointer = Pointer.read(get_hash(self._redis, self._keys.current(self._store.model_id)))
        with self._lock:
            target = self._state.pointer_read(pointer, time.monotonic())
        if target is not None:
            self._take(target)
        self._acknowledge()

    def _take(self, target: Pointer) -> None:
        try:
            data = self._activate(target)
        except Exception as error:  # any fault is a refusal with a reason
            refusal = _as_refusal(error)
            log.warning("catalog %s is refused (%s): %s", target.version, refusal.reason, refusal.message)
            with self._lock:
                self._state.refuse(refusal, time.monotonic())
            return
        with self._lock:
            self._state.activate(time.monotonic())
        log.info("catalog %s is active (generation %d)", target.version, target.generation)
        if self._last_good is not None:
            try:
                self._last_good.save(target.version, data, keep=self._store.resident())
            except OSError as error:
                log.warning("the last-good copy could not be written: %s", error)

    def _activate(self, target: Pointer) -> memoryview | None:
        """Make the target's version resident and active; returns its bytes if they were fetched."""
        if target.version in self._store.resident():
            self._store.activate(target.version)
            return None
        manifest = fetch_manifest(self._redis, self._keys, target)
        self._store.check_model(manifest.model, manifest.sizes)
        if manifest.size > free_memory_of_host():
            raise CatalogError("memory", f"{manifest.size} bytes to fetch, less is free on the host")
        data = fetch_blob(self._redis, self._keys, manifest, self._stop)
        self._store.stage(decode_as(manifest, data))
        self._store.activate(target.version)
        return data

    def _start_from_disk(self) -> None:
        """Serve the newest of the kept copies that is whole and fits."""
        for catalog in self._last_good.load() if self._last_good else ():
            try:
                self._store.stage(catalog)
                self._store.activate(catalog.version)
            except CatalogError as error:
                log.warning("the copy of %s is refused (%s): %s", catalog.version, error.reason, error.message)
            else:
                log.info("catalog %s is active from its copy on disk", catalog.version)
                return

    def _acknowledge(self) -> None:
        snapshot = self.snapshot()
        ack = Ack(
            instance=self._settings.instance,
            model=self._store.model_id,
            version=snapshot.active,
            generation=snapshot.generation,
            state=snapshot.state,
            error=f"{snapshot.reason}: {snapshot.error}" if snapshot.reason else None,
            time_ms=time.time_ns() // 1_000_000,
        )
        lifetime = int(max(60.0, 4 * self._settings.poll_seconds))
        try:
            self._redis.set(self._keys.ack(self._settings.instance), msgspec.json.encode(ack), ex=lifetime)
        except redis.ResponseError as error:  # not allowed to write, or Redis is full: reading goes on
            log.warning("the ack could not be written: %s", error)

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            with suppress(redis.RedisError, OSError):
                self._subscription.close()
            self._subscription = None
        self._redis.connection_pool.disconnect()

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
