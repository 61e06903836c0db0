"""A publisher, a store and watchers around one namespace of a real Redis."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis
import torch
from pydantic import SecretStr

from catalog_sync import blob
from catalog_sync.connection import connect, get_bytes
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Ack, Keys, Manifest, Pointer, read_record
from catalog_sync.loading import AskCanaries
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from catalog_sync.watcher import Watcher
from engine.catalog.store import CatalogStore
from tests.engine.catalogs import Item, catalog_of

MODEL, SIZES = "m", (64, 64)
_numbers = itertools.count()


@dataclass
class Fleet:
    """Everything that talks to one namespace; a slow poll, so that what happens quickly is due to a notice."""

    server: EmbeddedRedis
    poll_seconds: float = 30.0
    free_memory: int = 1 << 40
    guard_requests: int = 0
    group: str | None = None
    instance: str | None = None
    ask_canaries: AskCanaries | None = None
    trusted_keys: tuple[Path, ...] = ()
    disk: Path | None = None
    namespace: str = field(default_factory=lambda: f"test{next(_numbers)}")

    def __post_init__(self) -> None:
        self.settings = CatalogSettings(
            url=SecretStr(self.server.url),
            namespace=self.namespace,
            instance=self.instance or f"i-{self.namespace}",
            poll_seconds=self.poll_seconds,
            socket_timeout=1.0,
            retry_seconds=0.02,
            health_check_seconds=1,
            disk=self.disk,
            group=self.group,
            guard_requests=self.guard_requests,
            trusted_keys=self.trusted_keys,
        )
        self.redis: redis.Redis = connect(self.settings)
        self.keys = Keys(self.namespace)
        self.publisher = Publisher(self.redis, self.namespace)
        self.store = CatalogStore(torch.device("cpu"), MODEL, SIZES, lambda: self.free_memory)

    def watcher(self) -> Watcher:
        return Watcher(self.settings, self.store, self.ask_canaries)

    def connect_as(self, user: str, password: str, rules: Sequence[str]) -> None:
        """Later watchers are this Redis user, who gets these ACL rules."""
        self.redis.execute_command("ACL", "SETUSER", user, *rules)  # type: ignore[no-untyped-call]  # redis-py's
        url = self.server.url.replace("redis://", f"redis://{user}:{password}@")
        self.settings = self.settings.model_copy(update={"url": SecretStr(url)})

    def publish(self, item_ids: Sequence[int], label: str | None = None) -> Pointer:
        return self.publisher.publish(*version_with(item_ids, label=label))

    def close(self) -> None:
        self.redis.close()


def version_with(
    item_ids: Sequence[int], *, model: str = MODEL, sizes: tuple[int, ...] = SIZES, label: str | None = None
) -> tuple[Manifest, bytearray]:
    """A version that holds these items; chunks of 1 KiB, so that small catalogs have several."""
    items = [Item(i, tuple(i % size for size in sizes), tags=frozenset({f"t{i % 5}"})) for i in item_ids]
    data = blob.encode(catalog_of(items, sizes, model=model))
    return Manifest.of(blob.decode(data), data, label, chunk_bytes=1024), data


def ack_of(fleet: Fleet) -> Ack:
    """What the fleet's instance last said of itself; states nothing if it has said nothing yet."""
    raw = get_bytes(fleet.redis, fleet.keys.ack(fleet.settings.instance))
    return read_record(raw, Ack, "ack") if raw else Ack("", "", None, 0, "", None, 0)
