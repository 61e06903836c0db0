"""The publisher's side of quarantine: no instance takes up a version that stands here, and no pointer moves to it."""

import time
from dataclasses import dataclass

import msgspec
import redis

from catalog_sync.connection import get_bytes
from catalog_sync.layout import Condemnation, Keys, Manifest, Pointer
from catalog_sync.publisher import Publisher
from engine.errors import CatalogError


@dataclass(frozen=True, slots=True)
class FleetQuarantine:
    """Of one namespace. Redis errors pass through."""

    client: redis.Redis
    keys: Keys
    publisher: Publisher

    def condemn(self, version: str, reason: str, message: str, by: str) -> Pointer | None:
        """Quarantine a version for the whole fleet; its model's pointer goes back if it names it or a delta of it.

        Returns the pointer if it moved. The quarantine comes first: what is killed in between leaves a pointer that
        nobody takes up, and ``retreat`` or the same call again moves it. Raises CatalogError ``unknown_version``,
        or ``no_previous`` or ``conflict`` if the version is quarantined but the pointer could not be moved.
        """
        raw = get_bytes(self.client, self.keys.manifest(version))
        if raw is None:
            raise CatalogError("unknown_version", f"version {version} is not in Redis")
        model = Manifest.read(raw).model
        pointer = self.publisher.pointer(model)
        record = Condemnation(version, reason, message, pointer.generation if pointer else 0, self._now(), by)
        self.client.hset(self.keys.quarantine, version, msgspec.json.encode(record))
        return self.retreat(model)

    def retreat(self, model: str) -> Pointer | None:
        """Move a pointer back that names a quarantined version or a delta of one; returns it if it moved.

        The errors of ``rollback``.
        """
        pointer, quarantine = self.publisher.pointer(model), self.publisher.quarantine()
        if pointer is None or not quarantine or self.publisher.bad_part(pointer.version, quarantine) is None:
            return None
        return self.publisher.rollback(model)

    def release(self, version: str) -> None:
        """Let a version be activated again, also by instances that condemned it themselves.

        Raises CatalogError ``not_quarantined`` if neither the fleet nor an instance has condemned it.
        """
        status = self.publisher.status()
        found = self.client.hdel(self.keys.quarantine, version)
        if not found and not any(version in ack.condemned for ack in status.acks):
            raise CatalogError("not_quarantined", f"version {version} is not quarantined")
        # as late as everything that an instance can have condemned it under, whatever Redis's clock did meanwhile
        seconds, microseconds = self.client.time()
        generations = [pointer.generation for pointer in status.pointers.values()]
        generations += [pin.generation for pin in status.pins.values()]
        latest = max([int(seconds) * 1000 + int(microseconds) // 1000, *generations])
        self.client.hset(self.keys.released, version, str(latest))

    @staticmethod
    def _now() -> int:
        return time.time_ns() // 1_000_000
