"""One version from Redis into the store: fetched, checked, staged, tried."""

from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Literal

import redis

from catalog_sync.fetch import Link, decode_as, fetch_blob, fetch_chain, fetch_manifest
from catalog_sync.layout import Canary, Keys, Manifest, Pointer
from catalog_sync.signing import TrustedKeys
from engine.catalog.store import CatalogStore, free_memory_of_host
from engine.errors import CatalogError

OVERLAY_LIMIT = 1 << 20
"""Items brought by deltas from which on a version is rather built on a full form: every delta takes time for them."""

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

    def load(self, target: Pointer, reached: Callable[[Step], None]) -> Mapping[str, memoryview] | None:
        """Make a version resident; returns the bytes that it took, by version; none if it is resident already.

        ``reached`` hears of every step. Raises CatalogError, and nothing of the version stays.
        """
        if target.version in self._store.resident():
            return None
        manifest = fetch_manifest(self._redis, self._keys, target)
        self._trusted.check(manifest)
        self._store.check_model(manifest.model, manifest.sizes)
        files = self._stage_chain(self._chain(manifest))
        reached("staged")
        if manifest.canaries and manifest.parent is None and self._ask_canaries is not None:
            reached("canary")
            try:
                self._ask_canaries(target.version, manifest.canaries, self._stop)
            except BaseException:
                self._store.discard(target.version)
                raise
        return files

    def _chain(self, manifest: Manifest) -> list[Link]:
        usable = {name: self._store.overlaid(name) <= OVERLAY_LIMIT for name in self._store.resident()}
        return fetch_chain(
            self._redis,
            self._keys,
            manifest,
            self._trusted.check,
            resident=[name for name, light in usable.items() if light],
            worn=[name for name, light in usable.items() if not light],
        )

    def _stage_chain(self, chain: Sequence[Link]) -> dict[str, memoryview]:
        """Stage one version after the other; only the last stays staged. Returns their bytes."""
        files: dict[str, memoryview] = {}
        for link in chain:
            if link.manifest.size > free_memory_of_host():
                raise CatalogError("memory", f"{link.manifest.size} bytes to fetch, less is free on the host")
            data = fetch_blob(self._redis, self._keys, link.manifest, self._stop)
            try:
                self._store.stage(decode_as(link, data), anew=True)  # on the base of this chain
            except CatalogError:
                self._store.unstage()
                raise
            files[link.version] = data
        return files
