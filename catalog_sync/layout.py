"""Redis keys and the records under them. All keys of a namespace share one hash slot."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from catalog_sync.blob import FORMAT, Bytes
from engine.catalog.build import check_sizes
from engine.catalog.catalog import Catalog
from engine.errors import CatalogError

CHUNK_BYTES = 4 << 20  # one 192 MiB GET stalls its neighbours by 160 ms, chunks of 4 MiB by 10
HISTORY_LIMIT = 16
MAX_VERSION = 128
MAX_GENERATION = 1 << 53  # Redis counts them in Lua, in doubles

Record = TypeVar("Record", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of a namespace."""

    namespace: str

    def chunk(self, version: str, number: int) -> str:
        return f"{{{self.namespace}}}:chunk:{version}:{number}"

    def manifest(self, version: str) -> str:
        return f"{{{self.namespace}}}:manifest:{version}"

    def current(self, model: str) -> str:
        return f"{{{self.namespace}}}:current:{model}"

    def ack(self, instance: str) -> str:
        return f"{{{self.namespace}}}:ack:{instance}"

    @property
    def notify(self) -> str:
        return f"{{{self.namespace}}}:notify"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a version consists of. Hashes are SHA-256 in hex; ``chunks[i]`` is that of chunk ``i``."""

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
    parent: str | None = None

    @classmethod
    def of(cls, catalog: Catalog, blob: Bytes, label: str | None = None, chunk_bytes: int = CHUNK_BYTES) -> "Manifest":
        return cls(
            format=FORMAT,
            version=catalog.version,
            model=catalog.model,
            sizes=catalog.trie.sizes,
            items=catalog.trie.items,
            leaves=catalog.trie.leaves,
            size=len(blob),
            chunk_bytes=chunk_bytes,
            sha256=sha256(blob),
            chunks=tuple(sha256(chunk) for chunk in chunks_of(blob, chunk_bytes)),
            label=label,
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


class Ack(msgspec.Struct, frozen=True):
    """What one instance says of itself. ``error`` is given when the pointer's version was refused."""

    instance: str
    model: str
    version: str | None
    generation: int
    state: str
    error: str | None
    time_ms: int


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
