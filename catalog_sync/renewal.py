"""Builds what serves anew on a full form, beside the thread that follows the pointer: deltas go on meanwhile."""

import logging
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from threading import Event, Thread

import redis

from catalog_sync.fetch import decode_as, fetch_blob, fetch_chain
from catalog_sync.layout import Keys, Manifest
from engine.catalog.resident import ResidentCatalog
from engine.catalog.store import CatalogStore

OVERLAY_LIMIT = 1 << 20
"""Items brought by deltas from which on a version is rather built on a full form: every delta takes time for them."""
CHAIN_LIMIT = 1024
"""Deltas from which on it is, too: beside a last-good copy lies all that it builds on."""
PAUSE_SECONDS = 10.0
"""Between two looks for a full form."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Renewed:
    """A version made on a full form, not in the store; ``files``: the bytes that it took, by version."""

    version: str
    resident: ResidentCatalog
    files: Mapping[str, memoryview]


class Renewal:
    """For one thread, whose next delta builds on what another thread made. ``check`` sees every manifest."""

    def __init__(
        self, store: CatalogStore, client: redis.Redis, keys: Keys, check: Callable[[Manifest], None], stop: Event
    ) -> None:
        self._store, self._redis, self._keys, self._check, self._stop = store, client, keys, check, stop
        self._thread: Thread | None = None
        self._made: Renewed | None = None
        self._look_at = 0.0

    def consider(self, manifest: Manifest) -> None:
        """Begin with a resident delta version if deltas brought too much of it, or were too many."""
        busy = self._made is not None or (self._thread is not None and self._thread.is_alive())
        deltas, overlaid = self._store.deltas(manifest.version)
        if busy or (overlaid <= OVERLAY_LIMIT and deltas <= CHAIN_LIMIT) or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + PAUSE_SECONDS
        self._thread = Thread(target=self._run, args=(manifest,), name="catalog-renewal", daemon=True)
        self._thread.start()

    def take(self, ancestors: Container[str]) -> Renewed | None:
        """What was made, if it is among the ``ancestors`` of the version to be made; what nobody can use goes."""
        made = self._made
        if made is None:
            return None
        if made.version in ancestors:
            self._made = None
            return made
        if made.version not in self._store.resident():
            self._made = None
        return None

    def close(self) -> None:
        """Wait for the thread; the event that it was given is to be set."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, manifest: Manifest) -> None:
        try:
            self._made = self._renewed(manifest)
        except Exception as error:  # what serves can go on growing; a later delta tries again
            log.warning("catalog %s is not built anew on a full form: %r", manifest.version, error)

    def _renewed(self, manifest: Manifest) -> Renewed | None:
        """None while no full form is new enough to halve the deltas or the items that they brought."""
        chain = fetch_chain(self._redis, self._keys, manifest, self._check)
        deltas, overlaid = self._store.deltas(manifest.version)
        if 2 * (len(chain) - 1) > deltas and 2 * sum(link.manifest.items for link in chain[1:]) > overlaid:
            return None
        files = {link.version: fetch_blob(self._redis, self._keys, link.manifest, self._stop) for link in chain}
        resident = self._store.make([decode_as(link, files[link.version]) for link in chain])
        return Renewed(manifest.version, resident, files)
