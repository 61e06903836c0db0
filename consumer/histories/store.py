"""The durable copy of histories, as the serving loop sees it."""

from collections.abc import Sequence
from typing import Protocol

from consumer.histories.operation import Stored, UserKey, Write
from engine.errors import RecallstreamError


class StoreError(RecallstreamError):
    """The store does not answer, or not as it should; what was asked for may or may not have been done."""


class HistoryStore(Protocol):
    """``consumer.histories.redis_store.RedisStore``; belongs to one thread."""

    def exchange(self, writes: Sequence[Write], users: Sequence[UserKey]) -> tuple[list[bool], list[Stored]]:
        """Write, then read: whether each write was done, and what there is of each user. Raises StoreError."""

    def close(self) -> None:
        """Let go of the connection."""
