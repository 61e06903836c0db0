"""Full forms made by a process of its own: it takes memory for two catalogs and seconds of a core."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import redis

from catalog_sync.connection import connect
from catalog_sync.deltas import DeltaPublisher, Sign, unsigned
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from catalog_sync.signing import sign
from engine.errors import CatalogError

_NICENESS = 10


def signer(key: Path | None) -> Sign:
    """Signs with the PEM private key in a file, or not at all."""
    return unsigned if key is None else lambda manifest: sign(manifest, key)


class RebaseHelper:
    """One full form at a time; ``report`` hears in a line how it went. Use as a context manager, which waits."""

    def __init__(self, settings: CatalogSettings, key: Path | None, report: Callable[[str], None]) -> None:
        self._settings, self._key, self._report = settings, key, report
        self._pool: ProcessPoolExecutor | None = None
        self._running: Future[str] | None = None

    def start(self, version: str) -> None:
        """Begin with a version's full form, unless one is being made."""
        self.look()
        if self._running is not None:
            return
        spawned = multiprocessing.get_context("spawn")  # a fork would inherit connections and threads
        self._pool = ProcessPoolExecutor(1, mp_context=spawned)
        self._running = self._pool.submit(_rebase, self._settings, self._key, version)

    def look(self, *, wait: bool = False) -> None:
        """Report the one in work if it has ended."""
        if self._running is None or self._pool is None or not (wait or self._running.done()):
            return
        try:
            self._report(self._running.result())
        except Exception as error:  # the chain only grows on; the next delta tries again
            self._report(f"no full form could be made: {error}")
        self._pool.shutdown()
        self._pool = self._running = None

    def __enter__(self) -> "RebaseHelper":
        return self

    def __exit__(self, *_: object) -> None:
        self.look(wait=True)


def _rebase(settings: CatalogSettings, key: Path | None, version: str) -> str:
    os.nice(_NICENESS)
    try:
        with connect(settings) as client:
            full = DeltaPublisher(Publisher(client, settings.namespace), signer(key)).rebase(version)
    except (CatalogError, redis.RedisError) as error:
        raise RuntimeError(str(error)) from None  # whatever it is, it must survive the way to the other process
    return f"version {version} is there in full: {full.items:,} items, {full.size:,} bytes"
