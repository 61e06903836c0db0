"""One way to make a Redis client, and reads with their types settled."""

from typing import overload

import redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.retry import Retry

from catalog_sync.settings import CatalogSettings


def connect(settings: CatalogSettings) -> redis.Redis:
    """A client that fails within ``socket_timeout``.

    Its own retries are off: with redis-py's default a call on a hung server takes 15 s at a time-out of 1 s.
    """
    client: redis.Redis = redis.Redis.from_url(
        settings.url.get_secret_value(),
        socket_timeout=settings.socket_timeout,
        socket_connect_timeout=settings.socket_timeout,
        socket_keepalive=True,
        health_check_interval=settings.health_check_seconds,
        retry=Retry(NoBackoff(), 0),
    )
    return client


def subscribe(client: redis.Redis, channel: str) -> PubSub:
    """A subscription of its own connection; its confirmation arrives as the first message."""
    subscription: PubSub = client.pubsub()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    subscription.subscribe(channel)
    return subscription


def get_bytes(client: redis.Redis, key: str) -> bytes | None:
    """GET."""
    return _bytes(client.get(key))


def get_hash(client: redis.Redis, key: str) -> dict[bytes, bytes]:
    """HGETALL."""
    return {_bytes(name): _bytes(value) for name, value in client.hgetall(key).items()}


@overload
def _bytes(value: bytes | str) -> bytes: ...
@overload
def _bytes(value: bytes | str | None) -> bytes | None: ...
def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value  # text only if the URL asks for decoded answers
