"""The publisher's side: upload versions, move the pointer, look at the fleet."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.resources import files

import msgspec
import redis

from catalog_sync.ancestry import Ancestry, ancestors
from catalog_sync.blob import Bytes
from catalog_sync.connection import get_bytes, get_hash
from catalog_sync.fetch import fetch_chain
from catalog_sync.layout import (
    HISTORY_LIMIT,
    Ack,
    Condemnation,
    Keys,
    Manifest,
    Pin,
    Pointer,
    Record,
    chunks_of,
    read_record,
    sha256,
)
from engine.errors import CatalogError

_FIRST_ONES = ("label", "positions", "signature")


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """What Redis holds: pointers by model, manifests, acks of living instances, keys of records that make no sense.

    ``pins`` by group, ``quarantine`` by version: what is condemned for the whole fleet. ``full_forms``: of delta
    versions, the version whose bytes hold all of their items.
    """

    pointers: Mapping[str, Pointer]
    manifests: tuple[Manifest, ...]
    acks: tuple[Ack, ...]
    unreadable: tuple[str, ...]
    pins: Mapping[str, Pin]
    quarantine: Mapping[str, Condemnation]
    full_forms: Mapping[str, str] = field(default_factory=dict)

    @property
    def parents(self) -> Mapping[str, str | None]:
        """The version that each one changes; none of a base."""
        return {manifest.version: manifest.parent for manifest in self.manifests}

    def bad_part(self, version: str) -> str | None:
        """The version, or the nearest one that it changes, that is quarantined; none if it is sound."""
        found = (version, *ancestors(version, self.parents))
        return next((each for each in found if each in self.quarantine), None)


def ignore(_: int) -> None:
    """No progress display."""


class Publisher:
    """Writes versions and pointers of one namespace. Redis errors pass through; the rest is CatalogError."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.client = self._redis = client
        self.keys = self._keys = Keys(namespace)
        self._ancestry = Ancestry(client, self.keys)
        self._advance = client.register_script(files("catalog_sync").joinpath("advance.lua").read_text())

    def upload(self, manifest: Manifest, blob: Bytes, progress: Callable[[int], None] = ignore) -> Manifest:
        """Write chunks, then the manifest, read all of it back; a version that is there already is only verified.

        Returns the manifest that stands (the first publisher's label, positions and signature stay). ``progress`` gets
        bytes done, twice the blob's in all. Raises CatalogError ``verify``.
        """
        self._write_chunks(manifest, blob, progress)
        self._redis.set(self._keys.manifest(manifest.version), msgspec.json.encode(manifest), nx=True)
        standing = self._manifest(manifest.version)[0]
        names = [field.name for field in msgspec.structs.fields(manifest) if field.name not in _FIRST_ONES]
        if other := [name for name in names if getattr(standing, name) != getattr(manifest, name)]:
            what = f"version {manifest.version} was published before with other {', '.join(other)}"
            raise CatalogError("verify", f"{what}; a version never changes: prune it first, or publish it as it was")
        if manifest.signature is not None and standing.signature is None:
            raise CatalogError("verify", f"version {manifest.version} was published before, unsigned: prune it first")
        self._verify_chunks(manifest, progress)
        return standing

    def upload_full(self, manifest: Manifest, blob: Bytes) -> None:
        """Upload the full form of a delta version and name it as such; one that is there already stays.

        Raises CatalogError ``verify``.
        """
        if manifest.full_of is None:
            raise ValueError("this is not the full form of a version")
        raw = msgspec.json.encode(manifest)
        self._write_chunks(manifest, blob)
        self._redis.set(self._keys.manifest(manifest.version), raw, nx=True)  # another version may be equal to it
        self._verify_chunks(manifest)
        self._redis.set(self._keys.full(manifest.full_of), raw, nx=True)

    def _write_chunks(self, manifest: Manifest, blob: Bytes, progress: Callable[[int], None] = ignore) -> None:
        for number, chunk in enumerate(chunks_of(blob, manifest.chunk_bytes)):
            key = self._keys.chunk(manifest.version, number)
            if self._redis.strlen(key) != len(chunk):
                self._redis.set(key, chunk, nx=True)
            progress(len(chunk))

    def _verify_chunks(self, manifest: Manifest, progress: Callable[[int], None] = ignore) -> None:
        for number, expected in enumerate(manifest.chunks):
            stored = get_bytes(self._redis, self._keys.chunk(manifest.version, number))
            if stored is None or sha256(stored) != expected:
                state = "missing after the upload" if stored is None else "not what was written"
                raise CatalogError("verify", f"chunk {number} of version {manifest.version} is {state}")
            progress(len(stored))

    def pointer(self, model: str) -> Pointer | None:
        """What is current. Raises CatalogError ``pointer`` or ``wrong_type``, naming the key."""
        key = self._keys.current(model)
        try:
            return Pointer.read(get_hash(self._redis, key))
        except CatalogError as error:
            raise CatalogError(error.reason, f"{key}: {error.message}") from error

    def manifest(self, version: str) -> Manifest:
        """What a version consists of. Raises CatalogError ``unknown_version``."""
        return self._manifest(version)[0]

    def activate(self, version: str, *, model: str | None = None) -> Pointer:
        """Point the version's model at it and announce it.

        Raises CatalogError ``unknown_version``, ``incompatible`` (not made for ``model``), ``quarantined``,
        ``conflict`` (another publisher moved the pointer at the same time), or what ``fetch_chain`` raises where a
        version that it changes is not there any more.
        """
        manifest, digest = self._manifest(version)
        bad = self.bad_part(version, self.quarantine())
        if bad not in (None, version):
            raise CatalogError("quarantined", f"version {version} is a change of version {bad}, which is quarantined")
        if model is not None and manifest.model != model:
            raise CatalogError("incompatible", f"version {version} is made for model {manifest.model!r}, not {model!r}")
        fetch_chain(self._redis, self._keys, manifest, lambda _: None)
        return self._activate(manifest, digest, self.pointer(manifest.model))

    def publish(
        self,
        manifest: Manifest,
        blob: Bytes,
        progress: Callable[[int], None] = ignore,
        *,
        before: Pointer | None = None,
    ) -> Pointer:
        """Upload and activate; ``conflict`` if the pointer moved since the upload began, or is not ``before``."""
        before = before or self.pointer(manifest.model)
        self.upload(manifest, blob, progress)
        return self._activate(manifest, self._manifest(manifest.version)[1], before)

    def rollback(self, model: str) -> Pointer:
        """Point a model at the version before the current one that is not quarantined; done again, one further back.

        If all of those are, or are deltas of one that is, then at the newest before it. Raises CatalogError
        ``no_previous``, ``unknown_version`` or ``conflict``.
        """
        before = self.pointer(model)
        if before is None or not before.history:
            raise CatalogError("no_previous", f"model {model!r} has no version to go back to")
        version = self._sound_before(before)
        if version is None:
            raise CatalogError(
                "no_previous", f"every version that model {model!r} could go back to is quarantined or deleted"
            )
        at = before.history.index(version) + 1 if version in before.history else len(before.history)
        return self._move(model, before, Pointer(version, 0, self._manifest(version)[1], before.history[at:]))

    def _sound_before(self, pointer: Pointer) -> str | None:
        """The newest version of a pointer's history, else of what its version changes, that nothing bad is part of."""
        quarantine = self.quarantine().keys()
        for version in pointer.history:
            if self._redis.exists(self._keys.manifest(version)) and self.bad_part(version, quarantine) is None:
                return version
        found = [pointer.version, *self._ancestry.of(self._manifest(pointer.version)[0])]
        worst = max((at for at, version in enumerate(found) if version in quarantine), default=len(found))
        return next(iter(found[worst + 1 :]), None)

    def bad_part(self, version: str, quarantine: Collection[str]) -> str | None:
        """The version, or the nearest one that it changes, that is in ``quarantine``.

        Raises CatalogError ``unknown_version``.
        """
        return self._ancestry.bad_part(self._manifest(version)[0], quarantine)

    def status(self) -> FleetStatus:
        """Everything of the namespace."""
        unreadable: list[str] = []
        manifests = self._read_all(self._keys.manifest("*"), Manifest.read, unreadable)
        acks = self._read_all(self._keys.ack("*"), lambda raw: read_record(raw, Ack, "ack"), unreadable)
        pins = self._read_all(self._keys.pin("*"), lambda raw: read_record(raw, Pin, "pin"), unreadable)
        full = self._read_all(self._keys.full("*"), Manifest.read, unreadable)
        prefix = self._keys.current("")
        pointers: dict[str, Pointer] = {}
        for key in self._scan(self._keys.current("*")):
            try:
                if pointer := Pointer.read(get_hash(self._redis, key)):
                    pointers[key.removeprefix(prefix)] = pointer
            except CatalogError:
                unreadable.append(key)
        groups = {key.removeprefix(self._keys.pin("")): pin for key, pin in pins.items()}
        return FleetStatus(
            pointers,
            tuple(manifests.values()),
            tuple(acks.values()),
            tuple(unreadable),
            groups,
            self.quarantine(unreadable),
            {key.removeprefix(self._keys.full("")): manifest.version for key, manifest in full.items()},
        )

    def _read_all(self, pattern: str, read: Callable[[bytes], Record], unreadable: list[str]) -> dict[str, Record]:
        """Records by key, sorted; what makes no sense goes to ``unreadable``."""
        found: dict[str, Record] = {}
        for key in self._scan(pattern):
            try:
                raw = get_bytes(self._redis, key)
                if raw is not None or not pattern.startswith(self._keys.ack("")):  # acks expire
                    found[key] = read(raw or b"")
            except CatalogError:
                unreadable.append(key)
        return found

    def quarantine(self, unreadable: list[str] | None = None) -> dict[str, Condemnation]:
        """What is condemned for the whole fleet, by version."""
        found: dict[str, Condemnation] = {}
        try:
            for version, raw in sorted(get_hash(self._redis, self._keys.quarantine).items()):
                found[version.decode()] = read_record(raw, Condemnation, "quarantined")
        except (CatalogError, UnicodeDecodeError):
            if unreadable is not None:
                unreadable.append(self._keys.quarantine)
        return found

    def _scan(self, pattern: str) -> list[str]:
        return sorted(
            key if isinstance(key, str) else key.decode(errors="backslashreplace")
            for key in self._redis.scan_iter(pattern)
        )

    def _manifest(self, version: str) -> tuple[Manifest, str]:
        raw = get_bytes(self._redis, self._keys.manifest(version))
        if raw is None:
            raise CatalogError("unknown_version", f"version {version} is not in Redis")
        return Manifest.read(raw), sha256(raw)

    def _activate(self, manifest: Manifest, digest: str, before: Pointer | None) -> Pointer:
        history: tuple[str, ...] = ()
        if before is not None:
            history = before.history if before.version == manifest.version else (before.version, *before.history)
        return self._move(manifest.model, before, Pointer(manifest.version, 0, digest, history[:HISTORY_LIMIT]))

    def _move(self, model: str, before: Pointer | None, after: Pointer) -> Pointer:
        moved, generation = self._advance(
            keys=[self._keys.current(model), self._keys.manifest(after.version), self._keys.quarantine],
            args=[
                before.generation if before else 0,
                after.version,
                after.manifest,
                msgspec.json.encode(after.history),
                self._keys.notify,
            ],
        )
        if moved == -1:
            raise CatalogError("unknown_version", f"version {after.version} is not in Redis")
        if moved == -2:
            raise CatalogError(
                "quarantined", f"version {after.version} is quarantined: see catalog quarantine --release"
            )
        if moved == 0:
            raise CatalogError(
                "conflict", f"the pointer of model {model!r} was moved meanwhile: look at it, then activate"
            )
        return msgspec.structs.replace(after, generation=int(generation))
