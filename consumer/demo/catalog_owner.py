"""The catalog owner's side of the demo: publishes releases, one of them damaged, and reads what the service says."""

import asyncio
import time
from collections.abc import Callable

from catalog_sync.connection import connect, get_bytes
from catalog_sync.layout import Ack, Keys, read_record
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from consumer.demo.films import Release

_POLL_S = 0.02


class CatalogOwner:
    """``instance``: the name under which the demo's service acknowledges versions. Use as a context manager."""

    def __init__(self, settings: CatalogSettings, instance: str) -> None:
        self._redis = connect(settings)
        self._keys = Keys(settings.namespace)
        self._instance = instance
        self._publisher = Publisher(self._redis, settings.namespace)

    def publish(self, release: Release) -> None:
        """Upload, verify, point the model at it, announce."""
        self._publisher.publish(release.manifest, release.blob)

    def publish_damaged(self, release: Release) -> None:
        """The same for a version whose bytes change between the upload and the announcement."""
        self._publisher.upload(release.manifest, release.blob)
        key = self._keys.chunk(release.version, 0)
        chunk = bytearray(get_bytes(self._redis, key) or b"")
        middle = len(chunk) // 2
        chunk[middle : middle + 8] = bytes(byte ^ 0xFF for byte in chunk[middle : middle + 8])
        self._redis.set(key, bytes(chunk))
        self._publisher.activate(release.version)

    def rollback(self, model: str) -> str:
        """Point the model at the version before; returns that version."""
        return self._publisher.rollback(model).version

    def ack(self) -> Ack | None:
        """What the service last said of itself."""
        raw = get_bytes(self._redis, self._keys.ack(self._instance))
        return None if raw is None else read_record(raw, Ack, "ack")

    async def acknowledged(self, condition: Callable[[Ack], bool], timeout: float) -> Ack | None:
        """Wait for an ack that fulfils ``condition``; None after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ack = self.ack()
            if ack is not None and condition(ack):
                return ack
            await asyncio.sleep(_POLL_S)
        return None

    def __enter__(self) -> "CatalogOwner":
        return self

    def __exit__(self, *_: object) -> None:
        self._redis.close()
