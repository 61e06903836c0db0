"""What a cache keeps of each user, so that forgetting one costs no more than what is kept of that one. Pure."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeysByUser(Generic[K]):
    """Not thread-safe; a key without a user stands nowhere."""

    def __init__(self) -> None:
        self._keys: dict[str, set[K]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, user: str | None, key: K) -> None:
        if user is not None:
            if keys := self._keys.get(user):
                keys.add(key)
            else:
                self._keys[user] = {key}

    def discard(self, user: str | None, key: K) -> None:
        if user is not None and (keys := self._keys.get(user)):
            keys.discard(key)
            if not keys:
                del self._keys[user]

    def of(self, user: str) -> tuple[K, ...]:
        """Those of this user, at this moment."""
        return tuple(self._keys.get(user, ()))
