"""The versions that a delta changes, and refusing what builds on a bad one."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from threading import Lock

import redis

from catalog_sync.connection import get_field, get_hash
from catalog_sync.fetch import fetch_manifest
from catalog_sync.layout import Condemnation, Keys, Manifest, Pointer, read_record
from catalog_sync.quarantine import LocalQuarantine
from engine.errors import CatalogError

REACH = 4096
"""So far back a bad version is looked for: half an hour of two deltas a second."""


def ancestors(version: str, parents: Mapping[str, str | None]) -> list[str]:
    """The versions that a delta changes, nearest first, as far as ``parents`` goes; none for a base."""
    found: list[str] = []
    parent = parents.get(version)
    while parent is not None and parent not in found:
        found.append(parent)
        parent = parents.get(parent)
    return found


class Ancestry:
    """Parents of versions. A version's name is the hash of what names its parent, so what was read once stays true."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._parents: dict[str, tuple[str | None, str | None]] = {}

    def of(self, manifest: Manifest) -> Iterator[str]:
        """The version's parent, its parent, and so on, as far as they are known or in Redis.

        Read as they are asked for. Redis errors pass through.
        """
        parent, digest = self._note(manifest)
        for _ in range(REACH):
            if parent is None or digest is None:
                return
            yield parent
            if parent not in self._parents:
                try:
                    self._note(fetch_manifest(self._redis, self._keys, Pointer(parent, 0, digest)))
                except CatalogError:  # deleted, or damaged: then what is fetched for the chain says so
                    return
            parent, digest = self._parents[parent]

    def bad_part(self, manifest: Manifest, bad: Collection[str]) -> str | None:
        """The version, or the nearest one that it changes, that is ``bad``; none if it is sound."""
        if not bad:
            return None
        return next((each for each in chain([manifest.version], self.of(manifest)) if each in bad), None)

    def _note(self, manifest: Manifest) -> tuple[str | None, str | None]:
        while len(self._parents) >= REACH:
            del self._parents[next(iter(self._parents))]
        self._parents[manifest.version] = manifest.parent, manifest.parent_manifest
        return self._parents[manifest.version]


class QuarantineCheck:
    """Refuses versions that the fleet or this instance condemned, and what was made of them by deltas.

    ``lock`` guards ``own``.
    """

    def __init__(self, client: redis.Redis, keys: Keys, own: LocalQuarantine, lock: Lock) -> None:
        self._redis, self._keys, self._own, self._lock = client, keys, own, lock

    def check(self, version: str, ancestors: Iterable[str] = ()) -> None:
        """Raises CatalogError ``quarantined`` that names the bad version and who found it bad."""
        fleet = get_hash(self._redis, self._keys.quarantine)
        if not fleet and not self._own.reasons():
            return
        for each in (version, *ancestors):
            if (raw := fleet.get(each.encode())) is not None:
                found = read_record(raw, Condemnation, "quarantined")
                why = f"for the whole fleet, by {found.by}: {found.reason}: {found.message}"
            elif (own := self._own.get(each)) is not None and not self._released(own):
                why = f"by this instance: {own.reason}: {own.message}"
            else:
                continue
            raise CatalogError("quarantined", why if each == version else f"it is a change of version {each}: {why}")

    def _released(self, own: Condemnation) -> bool:
        """Whether the fleet lifted what this instance decided; then it may be tried again."""
        released = get_field(self._redis, self._keys.released, own.version)
        if released is None or int(released) < own.generation:
            return False
        with self._lock:
            self._own.release(own.version)
        return True
