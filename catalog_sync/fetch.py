"""Fetch one version from Redis and check all of it."""

from threading import Event

import numpy as np
import redis

from catalog_sync import blob
from catalog_sync.connection import get_bytes
from catalog_sync.layout import Keys, Manifest, Pointer, sha256
from engine.catalog.catalog import Catalog
from engine.errors import CatalogError


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


def decode_as(manifest: Manifest, buffer: blob.Bytes) -> Catalog:
    """The catalog in the bytes; raises CatalogError ``structure``, or ``manifest`` if it is not the promised one."""
    catalog = blob.decode(buffer, manifest.version)
    found = (catalog.model, catalog.sizes, catalog.items, catalog.leaves)
    if found != (manifest.model, manifest.sizes, manifest.items, manifest.leaves):
        raise CatalogError("manifest", f"version {manifest.version} holds another catalog than its manifest says")
    return catalog
