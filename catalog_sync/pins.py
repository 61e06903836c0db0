"""Pins: what a consumer group serves in the pointer's place, and what it keeps for requests that name it."""

from dataclasses import dataclass

import msgspec
import redis

from catalog_sync.ancestry import Ancestry
from catalog_sync.connection import get_bytes, get_hash
from catalog_sync.layout import MAX_GENERATION, Keys, Manifest, Pin, PinnedVersion, read_record, sha256
from engine.errors import CatalogError


def read_pin(client: redis.Redis, keys: Keys, group: str | None) -> Pin | None:
    """A group's pin. Raises CatalogError ``pin``."""
    raw = get_bytes(client, keys.pin(group)) if group is not None else None
    if raw is None:
        return None
    pin = read_record(raw, Pin, "pin")
    if not 0 < pin.generation < MAX_GENERATION:
        raise CatalogError("pin", f"unreadable pin of group {group}: its generation is not in 1 to 2^53")
    return pin


@dataclass(frozen=True, slots=True)
class Pins:
    """The operator's side of pins. One operator at a time: of two at once the later writer's pin stands."""

    client: redis.Redis
    keys: Keys

    def serve(self, group: str, version: str) -> Pin:
        """Have a group serve a version whatever the pointer says. CatalogError ``unknown_version``, ``quarantined``."""
        return self._write(group, msgspec.structs.replace(self._of(group), serve=self._named(version)), version)

    def keep(self, group: str, version: str) -> Pin:
        """Have a group keep a version resident beside what it serves. The same errors."""
        pin, named = self._of(group), self._named(version)
        others = tuple(each for each in pin.keep if each.version != version)
        return self._write(group, msgspec.structs.replace(pin, keep=(*others, named)), version)

    def remove(self, group: str, version: str | None = None) -> Pin | None:
        """Undo a group's pin of a version, or all its pins; what is left. Raises CatalogError ``not_pinned``."""
        pin = read_pin(self.client, self.keys, group)
        if pin is None or (version is not None and version not in pin.versions):
            raise CatalogError("not_pinned", f"group {group} does not pin {version or 'anything'}")
        serve = None if pin.serve is None or version in (None, pin.serve.version) else pin.serve
        keep = tuple(each for each in pin.keep if version not in (None, each.version))
        if serve is None and not keep:
            self.client.delete(self.keys.pin(group))
            self.client.publish(self.keys.notify, self._now())
            return None
        return self._write(group, Pin(0, serve, keep))

    def _of(self, group: str) -> Pin:
        return read_pin(self.client, self.keys, group) or Pin(0)

    def _named(self, version: str) -> PinnedVersion:
        raw = get_bytes(self.client, self.keys.manifest(version))
        if raw is None:
            raise CatalogError("unknown_version", f"version {version} is not in Redis")
        quarantine = [each.decode() for each in get_hash(self.client, self.keys.quarantine)]
        if bad := Ancestry(self.client, self.keys).bad_part(Manifest.read(raw), quarantine):
            why = "is" if bad == version else f"is a change of version {bad}, which is"
            raise CatalogError("quarantined", f"version {version} {why} quarantined")
        return PinnedVersion(version, sha256(raw))

    def _write(self, group: str, pin: Pin, version: str | None = None) -> Pin:
        pin = msgspec.structs.replace(pin, generation=max(pin.generation + 1, self._now()))
        self.client.set(self.keys.pin(group), msgspec.json.encode(pin))
        # prune looks at pins after it has taken a manifest away: one of the two sees the other
        if version is not None and not self.client.exists(self.keys.manifest(version)):
            self.remove(group, version)
            raise CatalogError("unknown_version", f"version {version} was deleted meanwhile")
        self.client.publish(self.keys.notify, pin.generation)
        return pin

    def _now(self) -> int:
        seconds, microseconds = self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000
