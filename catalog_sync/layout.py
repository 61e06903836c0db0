"""Redis keys and the records under them. All keys of a namespace share one hash slot."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta

from catalog_sync.blob import FORMAT, Bytes
from catalog_sync.columns import ColumnType, column_type
from engine.catalog.build import check_sizes
from engine.catalog.catalog import Catalog, Ids
from engine.catalog.delta import Delta
from engine.errors import CatalogError

CHUNK_BYTES = 4 << 20  # one 192 MiB GET stalls its neighbours by 160 ms, chunks of 4 MiB by 10
HISTORY_LIMIT = 16
MAX_VERSION = 128
MAX_GENERATION = 1 << 53  # Redis counts them in Lua, in doubles
MAX_CANARIES = 256

Record = TypeVar("Record", bound=msgspec.Struct)
Place = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A partition of a topic, or an offset in it."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of a namespace."""

    namespace: str

    def chunk(self, version: str, number: int) -> str:
        return f"{{{self.namespace}}}:chunk:{version}:{number}"

    def manifest(self, version: str) -> str:
        return f"{{{self.namespace}}}:manifest:{version}"

    def full(self, version: str) -> str:
        return f"{{{self.namespace}}}:full:{version}"

    def positions(self, version: str) -> str:
        return f"{{{self.namespace}}}:positions:{version}"

    def current(self, model: str) -> str:
        return f"{{{self.namespace}}}:current:{model}"

    def ack(self, instance: str) -> str:
        return f"{{{self.namespace}}}:ack:{instance}"

    def pin(self, group: str) -> str:
        return f"{{{self.namespace}}}:pin:{group}"

    @property
    def quarantine(self) -> str:
        return f"{{{self.namespace}}}:quarantine"

    @property
    def released(self) -> str:
        return f"{{{self.namespace}}}:released"

    @property
    def notify(self) -> str:
        return f"{{{self.namespace}}}:notify"


class Canary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request that a version must answer well before it serves.

    ``request``: fields of a request as the protocol has them. The answer holds ``at_least`` so many items and all of
    ``must_contain``.
    """

    request: dict[str, Any]
    at_least: int = 1
    must_contain: tuple[int | str, ...] = ()
    name: str | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a version consists of. Hashes are SHA-256 in hex; ``chunks[i]`` is that of chunk ``i``.

    ``ids`` and ``fields``: kind of item id, and type by name of the item columns. ``parent`` of a delta: the version
    that it changes, and the SHA-256 of its manifest; ``items`` are those that it brings, ``withdrawn`` the others.
    ``full_of``: these bytes are a delta version in full, which the key ``full`` of that version says.
    ``positions``: of topics of item changes, by partition, the first record whose change it does not hold.
    ``signature``: Ed25519, in base64, of the manifest without it (``signing.py``).
    """

    format: int
    version: str
    model: str
    sizes: tuple[int, ...]
    items: int
    leaves: int
    size: int
    chunk_bytes: int
    sha256: str
    chunks: tuple[str, ...]
    label: str | None = None
    ids: Literal["int64", "string"] = "int64"
    fields: dict[str, ColumnType] = {}
    parent: str | None = None
    parent_manifest: str | None = None
    withdrawn: int = 0
    full_of: str | None = None
    positions: dict[str, dict[Place, Place]] = {}
    canaries: tuple[Canary, ...] = ()
    signature: str | None = None

    @classmethod
    def of(cls, catalog: Catalog, blob: Bytes, label: str | None = None, chunk_bytes: int = CHUNK_BYTES) -> "Manifest":
        """The manifest of a catalog and its bytes."""
        return cls(
            format=FORMAT,
            version=catalog.version,
            model=catalog.model,
            sizes=catalog.sizes,
            items=catalog.items,
            leaves=catalog.leaves,
            size=len(blob),
            chunk_bytes=chunk_bytes,
            sha256=sha256(blob),
            chunks=tuple(sha256(chunk) for chunk in chunks_of(blob, chunk_bytes)),
            label=label,
            ids=kind_of(catalog.ids),
            fields=types_of(catalog.fields),
        )

    @classmethod
    def of_delta(
        cls, delta: Delta, blob: Bytes, parent: "Manifest", parent_manifest: str, label: str | None = None
    ) -> "Manifest":
        """The manifest of a delta and its bytes over ``parent``, whose manifest has the hash ``parent_manifest``."""
        own = cls.of(dataclasses.replace(delta.upserts, version=delta.version), blob, label)
        return msgspec.structs.replace(
            own,
            ids=parent.ids,
            fields=parent.fields,
            parent=delta.parent,
            parent_manifest=parent_manifest,
            withdrawn=len(delta.withdrawn),
        )

    @classmethod
    def read(cls, raw: bytes) -> "Manifest":
        """A manifest of untrusted bytes. Raises CatalogError ``manifest`` or ``format``."""
        manifest = read_record(raw, cls, "manifest")
        if manifest.format != FORMAT:
            raise CatalogError("format", f"catalog format {manifest.format}, this program reads format {FORMAT}")
        whole = manifest.size > 0 and 0 < manifest.chunk_bytes <= CHUNK_BYTES
        if not whole or len(manifest.chunks) != -(-manifest.size // manifest.chunk_bytes):
            raise CatalogError("manifest", "the number of chunks does not match the size")
        if len(manifest.canaries) > MAX_CANARIES:
            raise CatalogError("manifest", f"{len(manifest.canaries)} canaries, at most {MAX_CANARIES} are run")
        if (manifest.parent is None) is not (manifest.parent_manifest is None):
            raise CatalogError("manifest", "the parent is named without its hash, or the hash without its name")
        check_sizes(manifest.sizes)
        return manifest


class Pointer(msgspec.Struct, frozen=True):
    """The current version of a model. ``manifest``: SHA-256 of its bytes; ``history``: older versions, newest first."""

    version: str
    generation: int
    manifest: str
    history: tuple[str, ...] = ()

    @classmethod
    def read(cls, raw: Mapping[bytes, bytes]) -> "Pointer | None":
        """From the pointer's hash; none if there is none. Raises CatalogError ``pointer``."""
        if not raw:
            return None
        try:
            history = msgspec.json.decode(raw.get(b"history", b"[]"), type=tuple[str, ...])
            pointer = cls(raw[b"version"].decode(), int(raw[b"generation"]), raw[b"manifest"].decode(), history)
        except (KeyError, ValueError) as error:
            raise CatalogError("pointer", f"unreadable pointer: {error!r}") from error
        if not (pointer.version.isprintable() and 0 < len(pointer.version) <= MAX_VERSION):
            raise CatalogError("pointer", "unreadable pointer: its version is no name")
        if not 0 < pointer.generation < MAX_GENERATION:
            raise CatalogError("pointer", "unreadable pointer: its generation is not in 1 to 2^53")
        return pointer


class PinnedVersion(msgspec.Struct, frozen=True):
    """A version by name and by the SHA-256 of its manifest's bytes."""

    version: str
    manifest: str


class Pin(msgspec.Struct, frozen=True):
    """What a consumer group holds on to: ``serve`` in the pointer's place, ``keep`` for requests that name it."""

    generation: int
    serve: PinnedVersion | None = None
    keep: tuple[PinnedVersion, ...] = ()

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(each.version for each in (self.serve, *self.keep) if each is not None)


class Condemnation(msgspec.Struct, frozen=True):
    """Why a version must not be served: found under ``generation`` of the pointer, or decided ``by`` somebody."""

    version: str
    reason: str
    message: str
    generation: int
    time_ms: int
    by: str = ""


class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one instance says of itself. ``error`` is given when the version that it should serve was refused.

    ``target``: the version that it should serve; ``pinned``: its group's pin says so, not the pointer. ``condemned``:
    versions that it found bad, with reasons. ``kept``: what became of the versions that its group keeps.
    """

    instance: str
    model: str
    version: str | None
    generation: int
    state: str
    error: str | None
    time_ms: int
    group: str | None = None
    target: str | None = None
    pinned: bool = False
    resident: tuple[str, ...] = ()
    condemned: dict[str, str] = {}
    kept: dict[str, str] = {}
    staleness_s: float = 0.0
    resident_bytes: int = 0


def kind_of(ids: Ids) -> Literal["int64", "string"]:
    return "int64" if isinstance(ids, np.ndarray) else "string"


def types_of(fields: Mapping[str, pa.Array]) -> dict[str, ColumnType]:
    return {name: column_type(column) for name, column in sorted(fields.items())}


def read_record(raw: bytes, kind: type[Record], reason: str) -> Record:
    """A JSON record of untrusted bytes. Raises CatalogError ``reason``."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CatalogError(reason, f"unreadable {kind.__name__.lower()}: {error}") from error


def chunks_of(blob: Bytes, size: int) -> Sequence[memoryview]:
    view = memoryview(blob)
    return [view[begin : begin + size] for begin in range(0, len(view), size)]


def sha256(data: Bytes) -> str:
    return hashlib.sha256(data).hexdigest()
