"""Users who were forgotten a while ago, because of what was read before that and is still under way. Pure."""

from collections import OrderedDict
from math import inf

_UNDER_WAY_S = 600.0
"""For so long an answer may still come to a request that was read before its user was forgotten."""
_MOST = 10_000
"""Users. Of what was read before one that is no longer known was forgotten, nobody's may stay."""


class Forgotten:
    """When users were forgotten last, seconds of the caller's clock. Not thread-safe."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, float] = OrderedDict()
        self._all_until = -inf

    def __len__(self) -> int:
        return len(self._at)

    def add(self, user: str, now: float) -> None:
        """All that is known of the user until ``now`` is to be gone."""
        self._at.pop(user, None)
        self._at[user] = now
        while now - next(iter(self._at.values())) >= _UNDER_WAY_S:
            self._at.popitem(last=False)
        if len(self._at) > _MOST:
            _, self._all_until = self._at.popitem(last=False)

    def covers(self, user: str, read: float) -> bool:
        """The user was forgotten since ``read``: nothing that comes of it may stay."""
        return read <= max(self._at.get(user, -inf), self._all_until)
