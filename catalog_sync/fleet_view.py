"""What Redis says of the whole fleet, for a page: read while somebody looks, never by whoever looks."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import redis

from catalog_sync.connection import connect, get_bytes
from catalog_sync.layout import Ack, Manifest, read_record
from catalog_sync.overview import overview
from catalog_sync.pins import read_pin
from catalog_sync.publisher import FleetStatus, Publisher
from catalog_sync.settings import CatalogSettings
from engine.errors import CatalogError

FRESH_SECONDS = 2.0


class FleetView:
    """Of one namespace, seen by an instance of ``model``. Thread-safe."""

    def __init__(self, settings: CatalogSettings, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._model, self._clock = settings, model, clock
        self._redis = connect(settings)
        self._publisher = Publisher(self._redis, settings.namespace)
        self._lock = threading.Lock()
        self._read: Mapping[str, Any] | None = None
        self._read_at = -FRESH_SECONDS
        self._error: str | None = None
        self._reader: threading.Thread | None = None

    def look(self) -> Mapping[str, Any]:
        """The last ``overview`` with ``age_s`` and ``error``, at once; if it is not fresh, the next one is read."""
        with self._lock:
            age = self._clock() - self._read_at
            if age >= FRESH_SECONDS and (self._reader is None or not self._reader.is_alive()):
                self._reader = threading.Thread(target=self._refresh, name="fleet-view", daemon=True)
                self._reader.start()
            known = self._read or {}
            return {**known, "age_s": age if known else None, "error": self._error}

    def close(self) -> None:
        """Wait for a read under way and close the connection."""
        with self._lock:
            reader = self._reader
        if reader is not None:
            reader.join()
        self._redis.close()

    def _refresh(self) -> None:
        error = None
        try:
            try:
                status = self._publisher.status()
            except redis.exceptions.NoPermissionError:
                status, error = self._without_scan(), "this Redis user may not SCAN: only this instance is shown"
            read: Mapping[str, Any] | None = overview(status, time.time_ns() // 1_000_000)
        except (redis.RedisError, OSError, CatalogError) as fault:
            read, error = None, str(fault)
        with self._lock:
            self._error = error
            self._read_at = self._clock()
            self._read = read or self._read

    def _without_scan(self) -> FleetStatus:
        """What can be read by name: the model's pointer and its versions, the group's pin, the quarantine, our ack."""
        keys, group = self._publisher.keys, self._settings.group
        pointer = self._publisher.pointer(self._model)
        pin = read_pin(self._redis, keys, group)
        named = [*((pointer.version, *pointer.history) if pointer else ()), *(pin.versions if pin else ())]
        manifests = [get_bytes(self._redis, keys.manifest(version)) for version in dict.fromkeys(named)]
        ack = get_bytes(self._redis, keys.ack(self._settings.instance))
        return FleetStatus(
            {self._model: pointer} if pointer else {},
            tuple(Manifest.read(raw) for raw in manifests if raw is not None),
            (read_record(ack, Ack, "ack"),) if ack is not None else (),
            (),
            {group: pin} if group is not None and pin is not None else {},
            self._publisher.quarantine(),
        )
