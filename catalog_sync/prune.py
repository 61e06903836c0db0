"""Deletes versions that nobody can need any more."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files

import redis

from catalog_sync.connection import get_bytes
from catalog_sync.fetch import fetch_chain
from catalog_sync.layout import Keys, Manifest, Pointer
from catalog_sync.pins import read_pin
from catalog_sync.publisher import FleetStatus, Publisher
from engine.errors import CatalogError

ORPHAN_IDLE_SECONDS = 3600
"""Chunks without a manifest that nobody has touched for so long are what a killed publisher left."""


def reasons_to_keep(status: FleetStatus, history: int) -> Mapping[str, str]:
    """Versions that must stay, each with one reason. No I/O.

    Of every pointer's older versions the newest ``history`` stay, and in any case the one that a rollback goes to.
    """
    kept: dict[str, str] = {}

    def keep(versions: Iterable[str | None], reason: str) -> None:
        for version in versions:
            if version is not None:
                kept.setdefault(version, reason)

    for model, pointer in status.pointers.items():
        keep([pointer.version], f"current for model {model}")
        usable = [version for version in pointer.history if status.bad_part(version) is None]
        keep(usable[:1], f"a rollback of model {model} goes there")
        keep(pointer.history[:history], f"among the last {history} of model {model}")
    for group, pin in status.pins.items():
        keep(pin.versions, f"pinned by group {group}")
    for ack in status.acks:
        keep((ack.version, ack.target, *ack.resident, *ack.kept), f"instance {ack.instance} has it")
    _keep_what_makes_them(kept, status)
    return kept


def _keep_what_makes_them(kept: dict[str, str], status: FleetStatus) -> None:
    """Add the parents and the full forms of what is kept."""
    parents = {  # a version that is there in full needs none, else a chain would be kept for ever
        manifest.version: manifest.parent for manifest in status.manifests if manifest.version not in status.full_forms
    }
    for version in tuple(kept):
        while (parent := parents.get(version)) is not None and parent not in kept:
            kept[parent] = f"version {version} is a change of it"
            version = parent
    for version, full in status.full_forms.items():
        if version in kept:
            kept.setdefault(full, f"version {version} in full")
    for manifest in status.manifests:
        if manifest.full_of in kept:  # the upload of a full form ends with the key that names it
            kept.setdefault(manifest.version, f"version {manifest.full_of} in full")


@dataclass(slots=True)
class Pruned:
    """``versions`` deleted with the bytes that they took, ``kept`` with reasons, ``orphans``: chunks of no version."""

    versions: dict[str, int] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    orphans: int = 0


def retire(publisher: Publisher, model: str) -> None:
    """Delete a model's pointer. CatalogError ``unknown_model``, or ``in_use`` while an instance has the model."""
    if publisher.pointer(model) is None:
        raise CatalogError("unknown_model", f"model {model!r} has no current version")
    if users := [ack.instance for ack in publisher.status().acks if ack.model == model]:
        raise CatalogError("in_use", f"model {model!r} is on {', '.join(users)}: stop them, their acks expire")
    publisher.client.delete(publisher.keys.current(model))


class Pruner:
    """Safe beside publishers, operators and instances: what comes to be needed meanwhile stays, or was never whole."""

    def __init__(self, client: redis.Redis, keys: Keys, publisher: Publisher) -> None:
        self._redis, self._keys, self._publisher = client, keys, publisher
        self._unless_moved = client.register_script(files("catalog_sync").joinpath("retire.lua").read_text())
        self._made: dict[str, Collection[str]] = {}  # of the version that was current last
        self._unless_manifest = client.register_script(files("catalog_sync").joinpath("sweep.lua").read_text())

    def prune(self, history: int, *, dry_run: bool = False) -> Pruned:
        """Delete what nobody needs. Redis errors pass through."""
        status = self._publisher.status()
        pruned = Pruned(kept=dict(reasons_to_keep(status, history)))
        for manifest in self._children_first(status):
            if manifest.version in pruned.kept:
                continue
            if dry_run or self._delete(manifest, pruned):
                pruned.versions[manifest.version] = manifest.size
            else:
                _keep_what_makes_them(pruned.kept, status)
        pruned.orphans = sum(1 for _ in self._orphans(dry_run))
        return pruned

    def _children_first(self, status: FleetStatus) -> list[Manifest]:
        """So that what is killed half-way leaves no version without its parent."""
        parents = {manifest.version: manifest.parent for manifest in status.manifests}

        def depth(version: str | None) -> int:
            steps = 0
            while version is not None and steps <= len(parents):
                version, steps = parents.get(version), steps + 1
            return steps

        return sorted(status.manifests, key=lambda manifest: depth(manifest.version), reverse=True)

    def _delete(self, manifest: Manifest, pruned: Pruned) -> bool:
        key = self._keys.manifest(manifest.version)
        raw = get_bytes(self._redis, key)
        if raw is None:
            return False
        moved = True
        while moved:
            pointer = self._publisher.pointer(manifest.model)
            if manifest.version in self._made_of(pointer):
                pruned.kept[manifest.version] = "what is current came to need it meanwhile"
                return False
            seen = pointer.generation if pointer is not None else 0
            moved = not self._unless_moved(keys=[self._keys.current(manifest.model), key], args=[seen])
        # a pin is written before its manifest is looked at: one of the two sees the other
        if group := self._pinned_by(manifest.version):
            self._redis.set(key, raw, nx=True)
            pruned.kept[manifest.version] = f"pinned by group {group} meanwhile"
            return False
        self._redis.delete(self._keys.full(manifest.version), self._keys.positions(manifest.version))
        for number in range(len(manifest.chunks)):
            self.sweep(manifest.version, self._keys.chunk(manifest.version, number))
        return True

    def _made_of(self, pointer: Pointer | None) -> Collection[str]:
        """The versions whose bytes make the current one."""
        if pointer is None:
            return ()
        if pointer.version not in self._made:
            try:
                chain = fetch_chain(self._redis, self._keys, self._publisher.manifest(pointer.version), lambda _: None)
            except CatalogError:  # no instance can fetch it
                chain = []
            parts = {each for link in chain for each in (link.version, link.manifest.version)}
            self._made = {pointer.version: {pointer.version, *parts}}
        return self._made[pointer.version]

    def _pinned_by(self, version: str) -> str | None:
        prefix = self._keys.pin("")
        for key in self._redis.scan_iter(self._keys.pin("*")):
            group = (key if isinstance(key, str) else key.decode()).removeprefix(prefix)
            pin = read_pin(self._redis, self._keys, group)
            if pin is not None and version in pin.versions:
                return group
        return None

    def sweep(self, version: str, chunk: str) -> bool:
        """Delete a chunk unless its version has a manifest: a publisher reads chunks back after it wrote that."""
        return bool(self._unless_manifest(keys=[self._keys.manifest(version), chunk]))

    def _orphans(self, dry_run: bool) -> Iterator[str]:
        for key in self._redis.scan_iter(self._keys.chunk("*", 0)[:-1] + "*"):
            name = key if isinstance(key, str) else key.decode(errors="backslashreplace")
            version = name.removeprefix(self._keys.chunk("", 0)[:-2]).rpartition(":")[0]
            if self._redis.exists(self._keys.manifest(version)) or not self._is_idle(name):
                continue
            if dry_run or self.sweep(version, name):
                yield name

    def _is_idle(self, key: str) -> bool:
        try:
            return int(self._redis.object("idletime", key) or 0) >= ORPHAN_IDLE_SECONDS
        except redis.ResponseError:  # the server counts how often keys are used, not when
            return False
