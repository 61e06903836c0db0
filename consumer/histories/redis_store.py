"""The durable copy in Redis: a hash per user, its head and numbered chunks of items.

Key ``NAMESPACE:history:TOPIC:USER``. Reads and writes of many users share one round trip.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import redis

from catalog_sync.connection import connect
from catalog_sync.settings import CatalogSettings
from consumer.histories.history import History
from consumer.histories.items import Cap
from consumer.histories.operation import Stored, UserKey, Write
from consumer.histories.settings import HistorySettings
from consumer.histories.store import StoreError

_HEAD = b"head"
_SAVE = files("consumer.histories").joinpath("save.lua").read_text(encoding="utf-8")


class RedisStore:
    """Belongs to one thread. ``client`` fails within a time-out and repeats nothing."""

    def __init__(self, client: redis.Redis, settings: HistorySettings, cap: Cap) -> None:
        self._client = client
        self._cap = cap
        self._prefix = f"{settings.namespace}:history:"
        self._ttl_ms, self._tombstone_ms = settings.ttl_s * 1000, settings.tombstone_s * 1000

    def key(self, user: UserKey) -> str:
        """Where a user's history is kept."""
        return f"{self._prefix}{user.topic}:{user.user}"

    def exchange(self, writes: Sequence[Write], users: Sequence[UserKey]) -> tuple[list[bool], list[Stored]]:
        """Write, then read, in one round trip: whether each write was done, and what there is of each user.

        Raises StoreError. What the store holds and nobody of ours wrote counts as nothing.
        """
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for write in writes:
                    pipe.eval(
                        _SAVE,
                        1,
                        self.key(write.user),
                        write.expected,
                        write.head,
                        write.index,
                        write.packed,
                        int(write.whole),
                        self._ttl_ms if write.held else self._tombstone_ms,
                    )
                for user in users:
                    pipe.hgetall(self.key(user))
                answers: list[Any] = pipe.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception) and not _is_no_hash(answer):
                    raise answer
        except redis.RedisError as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error
        done = [answer == 1 for answer in answers[: len(writes)]]
        return done, [self._stored(answer) for answer in answers[len(writes) :]]

    def close(self) -> None:
        self._client.close()

    def _stored(self, fields: dict[bytes, bytes] | Exception) -> Stored:
        if isinstance(fields, Exception):
            return Stored(History(), b"", 0, 0, damaged=True)
        head = fields.pop(_HEAD, b"")
        if not head and not fields:
            return Stored(History(), b"", 0, 0)
        try:
            packed = b"".join(fields[b"%d" % index] for index in range(len(fields)))
            history, count = History.parse(head, packed, self._cap)
        except (KeyError, ValueError):
            return Stored(History(), head, 0, 0, damaged=True)
        return Stored(history, head, len(fields), count)


def _is_no_hash(error: Exception) -> bool:
    """One user's key holds something else: it must not hold up all the others."""
    return isinstance(error, redis.ResponseError) and str(error).startswith("WRONGTYPE")


def store_of(settings: HistorySettings, catalog: CatalogSettings, cap: Cap) -> RedisStore | None:
    """As the settings say; in the Redis of the catalog, with its certificates, unless they name another.

    Raises CatalogError for a URL that makes no sense.
    """
    if settings.store == "off":
        return None
    changes: dict[str, object] = {"socket_timeout": settings.timeout_s}
    if settings.url is not None:
        changes["url"] = settings.url
        if not settings.url.get_secret_value().startswith("rediss://"):
            changes |= dict.fromkeys(("tls_ca", "tls_certificate", "tls_key"))
    return RedisStore(connect(catalog.model_copy(update=changes)), settings, cap)
