"""One version from Redis into the store: fetched, checked, staged, tried."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import Literal

import redis

from catalog_sync.fetch import decode_as, fetch_blob, fetch_manifest
from catalog_sync.layout import Canary, Keys, Pointer
from catalog_sync.signing import TrustedKeys
from engine.catalog.store import CatalogStore, free_memory_of_host
from engine.errors import CatalogError

Step = Literal["staged", "canary"]

AskCanaries = Callable[[str, Sequence[Canary], Event], None]
"""Has a resident version answer canary requests, until the event is set.

Raises CatalogError ``canary``, or ``busy`` if nothing answers.
"""


class VersionLoader:
    """``ask_canaries``: none leaves the canaries of a manifest alone."""

    def __init__(
        self,
        store: CatalogStore,
        client: redis.Redis,
        keys: Keys,
        trusted: TrustedKeys,
        ask_canaries: AskCanaries | None,
        stop: Event,
    ) -> None:
        self._store, self._redis, self._keys = store, client, keys
        self._trusted, self._ask_canaries, self._stop = trusted, ask_canaries, stop

    def load(self, target: Pointer, reached: Callable[[Step], None]) -> memoryview | None:
        """Make a version resident; returns its bytes, none if it is resident already.

        ``reached`` hears of every step. Raises CatalogError, and nothing of the version stays.
        """
        if target.version in self._store.resident():
            return None
        manifest = fetch_manifest(self._redis, self._keys, target)
        self._trusted.check(manifest)
        self._store.check_model(manifest.model, manifest.sizes)
        if manifest.size > free_memory_of_host():
            raise CatalogError("memory", f"{manifest.size} bytes to fetch, less is free on the host")
        data = fetch_blob(self._redis, self._keys, manifest, self._stop)
        self._store.stage(decode_as(manifest, data))
        reached("staged")
        if manifest.canaries and self._ask_canaries is not None:
            reached("canary")
            try:
                self._ask_canaries(target.version, manifest.canaries, self._stop)
            except BaseException:
                self._store.discard(target.version)
                raise
        return data
