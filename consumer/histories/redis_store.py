"""The durable copy in Redis: a hash per user, its head and numbered chunks of items.

Key ``NAMESPACE:history:TOPIC:USER``. Reads and writes of many users share one round trip.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from consumer.histories.history import History
from consumer.histories.items import Cap
from consumer.histories.operation import Stored, UserKey, Write
from consumer.histories.settings import HistorySettings
from engine.errors import RecallstreamError

_HEAD = b"head"
_SAVE = files("consumer.histories").joinpath("save.lua").read_text(encoding="utf-8")


class StoreError(RecallstreamError):
    """Redis does not answer, or not as it should; what was asked for may or may not have been done."""


class RedisStore:
    """Belongs to one thread. Raises StoreError for a URL that makes no sense."""

    def __init__(self, settings: HistorySettings, url: str, cap: Cap) -> None:
        self._cap = cap
        self._prefix = f"{settings.namespace}:history:"
        self._ttl_ms, self._tombstone_ms = settings.ttl_s * 1000, settings.tombstone_s * 1000
        try:
            self._client: redis.Redis = redis.Redis.from_url(
                url,
                socket_timeout=settings.timeout_s,
                socket_connect_timeout=settings.timeout_s,
                retry=Retry(NoBackoff(), 0),
            )
        except (TypeError, ValueError) as error:
            raise StoreError(f"the Redis URL of histories makes no sense: {type(error).__name__}") from error

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
                answers: list[Any] = pipe.execute()
        except redis.RedisError as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error
        done = [answer == 1 for answer in answers[: len(writes)]]
        return done, [self._stored(answer) for answer in answers[len(writes) :]]

    def close(self) -> None:
        self._client.close()

    def _stored(self, fields: dict[bytes, bytes]) -> Stored:
        head = fields.pop(_HEAD, b"")
        nothing = Stored(History(), head, 0, 0)
        if not head:
            return nothing
        try:
            packed = b"".join(fields[b"%d" % index] for index in range(len(fields)))
            history, count = History.parse(head, packed, self._cap)
        except (KeyError, ValueError):
            return nothing  # it is written over
        return Stored(history, head, len(fields), count)
