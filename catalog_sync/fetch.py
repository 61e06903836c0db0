"""Fetch a version from Redis, with those that it builds on, and check all of it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Event

import numpy as np
import redis

from catalog_sync import blob
from catalog_sync.connection import get_bytes
from catalog_sync.layout import Keys, Manifest, Pointer, kind_of, sha256, types_of
from engine.catalog.catalog import Catalog
from engine.catalog.delta import Delta
from engine.errors import CatalogError

CHAIN_LIMIT = 256
"""Deltas between a version and the nearest that is there in full."""


@dataclass(frozen=True, slots=True)
class Link:
    """One version of a chain: its name, and the manifest of the bytes that make it; of a full form, that one's."""

    version: str
    manifest: Manifest


def fetch_manifest(client: redis.Redis, keys: Keys, pointer: Pointer) -> Manifest:
    """The manifest that a pointer names. Raises CatalogError ``missing``, ``checksum``, ``manifest`` or ``format``."""
    raw = get_bytes(client, keys.manifest(pointer.version))
    if raw is None:
        raise CatalogError("missing", f"the manifest of version {pointer.version} is not in Redis")
    if sha256(raw) != pointer.manifest:
        raise CatalogError("checksum", f"the manifest of version {pointer.version} is not the one that was published")
    manifest = Manifest.read(raw)
    if manifest.version != pointer.version:
        raise CatalogError("manifest", f"the manifest of version {pointer.version} names {manifest.version!r}")
    return manifest


def fetch_full(client: redis.Redis, keys: Keys, version: str) -> Manifest | None:
    """The manifest of a delta version's full form, if it has one. Raises CatalogError ``manifest`` or ``format``."""
    raw = get_bytes(client, keys.full(version))
    if raw is None:
        return None
    manifest = Manifest.read(raw)
    if manifest.full_of != version or manifest.parent is not None:
        raise CatalogError("manifest", f"what should be version {version} in full is something else")
    return manifest


def fetch_chain(
    client: redis.Redis,
    keys: Keys,
    manifest: Manifest,
    check: Callable[[Manifest], None],
    resident: Collection[str] = (),
) -> list[Link]:
    """What makes a version: of several links the first builds on nothing or on a version of ``resident``.

    ``check`` is called with every manifest. Raises CatalogError: what ``fetch_manifest`` and ``check`` raise, and
    ``chain``.
    """
    links: list[Link] = []
    while manifest.parent is not None and manifest.parent_manifest is not None:
        if len(links) >= CHAIN_LIMIT:
            break
        if manifest.parent in resident:
            return [Link(manifest.version, manifest), *links]
        full = fetch_full(client, keys, manifest.version)
        if full is not None:
            check(full)
            return [Link(manifest.version, full), *links]
        links.insert(0, Link(manifest.version, manifest))
        manifest = fetch_manifest(client, keys, Pointer(manifest.parent, 0, manifest.parent_manifest))
        check(manifest)
    if manifest.parent is not None:
        raise CatalogError("chain", f"more than {CHAIN_LIMIT} deltas before version {manifest.version} is in full")
    return [Link(manifest.version, manifest), *links]


def fetch_blob(client: redis.Redis, keys: Keys, manifest: Manifest, stop: Event) -> memoryview:
    """The bytes of a version, every hash checked.

    Raises CatalogError ``missing``, ``memory``, ``checksum``, or ``stopped`` when ``stop`` is set.
    """
    try:
        # not a bytearray: it is filled with zeros under the GIL, 0.2 s for 130 MiB
        buffer = np.empty(manifest.size, dtype=np.uint8)
    except MemoryError as error:
        raise CatalogError("memory", f"no memory for the {manifest.size} bytes of {manifest.version}") from error
    for number, digest in enumerate(manifest.chunks):
        if stop.is_set():
            raise CatalogError("stopped", f"the fetch of {manifest.version} was broken off: the process ends")
        target = buffer[number * manifest.chunk_bytes : (number + 1) * manifest.chunk_bytes]
        chunk = get_bytes(client, keys.chunk(manifest.version, number))
        if chunk is None:
            raise CatalogError("missing", f"chunk {number} of version {manifest.version} is not in Redis")
        if len(chunk) != len(target) or sha256(chunk) != digest:
            raise CatalogError("checksum", f"chunk {number} of version {manifest.version} is damaged")
        target[:] = np.frombuffer(chunk, dtype=np.uint8)
    digest = sha256(buffer.data)
    if digest != manifest.sha256 or blob.version_of_digest(digest) != manifest.version:
        raise CatalogError("checksum", f"the bytes of version {manifest.version} have another hash")
    return buffer.data


def decode_as(link: Link, buffer: blob.Bytes) -> Catalog | Delta:
    """The version in the bytes; raises CatalogError ``structure``, or ``manifest`` if it is not the promised one."""
    manifest = link.manifest
    version = blob.decode_version(buffer, link.version)
    catalog = version.upserts if isinstance(version, Delta) else version
    found = (catalog.model, catalog.sizes, catalog.items, catalog.leaves)
    parent, withdrawn = (version.parent, len(version.withdrawn)) if isinstance(version, Delta) else (None, 0)
    promised = (manifest.model, manifest.sizes, manifest.items, manifest.leaves, manifest.parent, manifest.withdrawn)
    if (*found, parent, withdrawn) != promised:
        raise CatalogError("manifest", f"version {manifest.version} holds another catalog than its manifest says")
    if parent is None and (kind_of(catalog.ids), types_of(catalog.fields)) != (manifest.ids, manifest.fields):
        raise CatalogError("manifest", f"version {manifest.version} has other ids or fields than its manifest says")
    return version
