"""One way to make a Redis client, and reads with their types settled."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import overload

import redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.retry import Retry

from catalog_sync.settings import CatalogSettings
from engine.errors import CatalogError


def connect(settings: CatalogSettings) -> redis.Redis:
    """A client that fails within ``socket_timeout``. Raises CatalogError ``redis`` for a URL that makes no sense.

    Its own retries are off: with redis-py's default a call on a hung server takes 15 s at a time-out of 1 s.
    """
    url = settings.url.get_secret_value()
    options: dict[str, object] = {} if url.startswith("unix://") else {"socket_keepalive": True}
    files = {"ssl_ca_certs": settings.tls_ca, "ssl_certfile": settings.tls_certificate, "ssl_keyfile": settings.tls_key}
    options |= {name: str(path) for name, path in files.items() if path is not None}
    if any(name.startswith("ssl_") for name in options) and not url.startswith("rediss://"):
        raise CatalogError("redis", "catalog.tls_* is for URLs that begin with rediss://")
    try:
        client: redis.Redis = redis.Redis.from_url(
            url,
            socket_timeout=settings.socket_timeout,
            socket_connect_timeout=settings.socket_timeout,
            health_check_interval=settings.health_check_seconds,
            retry=Retry(NoBackoff(), 0),
            **options,
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # else its options are looked at only when it connects
        pool.connection_kwargs.get("host", "").encode("idna")  # else resolving the name raises what is no OSError
    except (TypeError, ValueError) as error:
        # what the parser says may quote a part of the password
        why = "it begins with redis://, and / # ? in its password are written as %2F %23 %3F" if "@" in url else error
        raise CatalogError("redis", f"the Redis URL makes no sense: {why}") from error
    if pool.connection_kwargs.get("decode_responses"):
        raise CatalogError("redis", "the Redis URL has decode_responses: catalogs are bytes, not text")
    return client


def subscribe(client: redis.Redis, channel: str) -> PubSub:
    """A subscription of its own connection; its confirmation arrives as the first message."""
    subscription: PubSub = client.pubsub()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    subscription.subscribe(channel)
    return subscription


def get_bytes(client: redis.Redis, key: str) -> bytes | None:
    """GET. Raises CatalogError ``wrong_type`` for a key that holds no string."""
    with _naming(key):
        return _bytes(client.get(key))


def get_hash(client: redis.Redis, key: str) -> dict[bytes, bytes]:
    """HGETALL. Raises CatalogError ``wrong_type`` for a key that holds no hash."""
    with _naming(key):
        return {_bytes(name): _bytes(value) for name, value in client.hgetall(key).items()}


def get_field(client: redis.Redis, key: str, name: str) -> bytes | None:
    """HGET. Raises CatalogError ``wrong_type`` for a key that holds no hash."""
    with _naming(key):
        return _bytes(client.hget(key, name))


@contextmanager
def _naming(key: str) -> Iterator[None]:
    try:
        yield
    except redis.ResponseError as error:
        if str(error).startswith("WRONGTYPE"):
            raise CatalogError("wrong_type", f"the key {key} holds another kind of value") from error
        raise


@overload
def _bytes(value: bytes | str) -> bytes: ...
@overload
def _bytes(value: bytes | str | None) -> bytes | None: ...
def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value  # never text: see connect
