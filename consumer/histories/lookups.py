"""Which users are to be read from the store, and which are being read."""

from collections.abc import Container, Iterator

from consumer.histories.operation import UserKey


class Lookups:
    """A user is wanted until taken, then being read until the store has answered."""

    def __init__(self) -> None:
        self._wanted: dict[UserKey, None] = {}
        self._loading: dict[UserKey, None] = {}
        self._outdated: set[UserKey] = set()

    def __len__(self) -> int:
        return len(self._wanted) + len(self._loading)

    def users(self) -> Iterator[UserKey]:
        """All of them."""
        yield from (*self._wanted, *self._loading)

    def want(self, user: UserKey) -> None:
        """What the store has from now on is wanted; an answer that is under way no longer counts."""
        if user in self._loading:
            self._outdated.add(user)
        else:
            self._wanted[user] = None

    def unwanted(self, user: UserKey) -> None:
        """Nobody needs it any more."""
        self._wanted.pop(user, None)

    def take(self, most: int) -> list[UserKey]:
        """Users who are being read from now on."""
        users = [user for user, _ in zip(self._wanted, range(most), strict=False)]
        for user in users:
            del self._wanted[user]
            self._loading[user] = None
        return users

    def answered(self, user: UserKey) -> bool:
        """The store has answered. False: what it says is not what was wanted last."""
        self._loading.pop(user, None)
        valid = user not in self._outdated
        self._outdated.discard(user)
        return valid

    def failed(self, held: Container[UserKey]) -> None:
        """The store does not answer: users who are ``held`` stay wanted."""
        self._wanted = {user: None for user in self._loading | self._wanted if user in held}
        self._loading = {}
        self._outdated.clear()
