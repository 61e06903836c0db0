"""One version from Redis into the store: fetched, checked, staged, tried."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import Literal

import redis

from catalog_sync.ancestry import Ancestry, QuarantineCheck
from catalog_sync.fetch import CHAIN_LIMIT, decode_as, fetch_blob, fetch_chain, fetch_manifest
from catalog_sync.layout import Canary, Keys, Manifest, Pointer
from catalog_sync.renewal import Renewal, Renewed
from catalog_sync.signing import TrustedKeys
from engine.catalog.store import CatalogStore, free_memory_of_host
from engine.errors import CatalogError

Step = Literal["staged", "canary"]

AskCanaries = Callable[[str, Sequence[Canary], Event], None]
"""Has a resident version answer canary requests, until the event is set.

Raises CatalogError ``canary``, or ``busy`` if nothing answers.
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """``files``: the bytes that a version took, by version; none if it was resident already. ``ancestors``: the last
    ``CHAIN_LIMIT`` versions that it was made of by deltas; none if it was resident.
    """

    files: Mapping[str, memoryview] | None = None
    ancestors: frozenset[str] = frozenset()


class VersionLoader:
    """``ask_canaries``: none leaves the canaries of a manifest alone."""

    def __init__(
        self,
        store: CatalogStore,
        client: redis.Redis,
        keys: Keys,
        trusted: TrustedKeys,
        quarantine: QuarantineCheck,
        ask_canaries: AskCanaries | None,
        stop: Event,
    ) -> None:
        self._store, self._redis, self._keys = store, client, keys
        self._trusted, self._ask_canaries, self._stop = trusted, ask_canaries, stop
        self._quarantine, self._ancestry = quarantine, Ancestry(client, keys)
        self._renewal = Renewal(store, client, keys, trusted.check, stop)

    def close(self) -> None:
        """Wait for what is under way beside this thread; the event ``stop`` is to be set."""
        self._renewal.close()

    def load(self, target: Pointer, reached: Callable[[Step], None]) -> Loaded:
        """Make a version resident. ``reached`` hears of every step.

        Raises CatalogError, and nothing of the version stays.
        """
        self._quarantine.check(target.version)
        if target.version in self._store.resident():
            return Loaded()
        manifest = fetch_manifest(self._redis, self._keys, target)
        self._trusted.check(manifest)
        self._quarantine.check(target.version, self._ancestry.of(manifest))
        self._store.check_model(manifest.model, manifest.sizes)
        ancestors = frozenset(islice(self._ancestry.of(manifest), CHAIN_LIMIT))
        files = self._stage(manifest, self._renewal.take(ancestors))
        reached("staged")
        if manifest.canaries and manifest.parent is None and self._ask_canaries is not None:
            reached("canary")
            try:
                self._ask_canaries(target.version, manifest.canaries, self._stop)
            except BaseException:
                self._store.discard(target.version)
                raise
        if manifest.parent is not None:
            self._renewal.consider(manifest)
        return Loaded(files, ancestors)

    def _stage(self, manifest: Manifest, start: Renewed | None) -> Mapping[str, memoryview]:
        """Stage a version, on ``start`` if there is one, else on a resident version that it changes, else on nothing.

        Returns the bytes that it took, by version.
        """
        resident = [start.version] if start is not None else self._store.resident()
        chain = fetch_chain(self._redis, self._keys, manifest, self._trusted.check, resident)
        files = dict(start.files) if start is not None else {}
        made = []
        for link in chain:
            if link.manifest.size > free_memory_of_host():
                raise CatalogError("memory", f"{link.manifest.size} bytes to fetch, less is free on the host")
            files[link.version] = fetch_blob(self._redis, self._keys, link.manifest, self._stop)
            made.append(decode_as(link, files[link.version]))
        self._store.place(self._store.make(made, start.resident if start is not None else None))
        return files
