"""A day of real users as requests to come: the busiest day of MovieLens-1M, in time order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from consumer.demo.movielens import MovieLens

DAY_S = 86_400
PAUSE_S = 600
"""A user who does nothing for so long has left."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A user's request at second ``at`` of the day, after events ``begin`` to ``end`` of his day."""

    user: int
    at: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Day:
    """``visits`` in time order; of each user who comes, by number: ``older``, the items before the day, and ``events``,
    those of the day, int64, oldest first.
    """

    date: str
    visits: tuple[Visit, ...]
    older: dict[int, NDArray[np.int64]]
    events: dict[int, NDArray[np.int64]]

    def new(self, visit: Visit) -> NDArray[np.int64]:
        """What the user did since his visit before."""
        return self.events[visit.user][visit.begin : visit.end]

    def history(self, visit: Visit) -> NDArray[np.int64]:
        """All up to this visit."""
        return np.concatenate([self.older[visit.user], self.events[visit.user][: visit.end]])


def busiest_day(data: MovieLens, *, every: int, items: tuple[int, int]) -> Day:
    """A visit after ``every`` ratings of a user and where he leaves.

    Nearly all who rate on a day came for the first time, so older histories are made: of length between ``items``,
    their logarithm uniform, a user's own ratings of all days over and over.
    """
    days = data.times // DAY_S
    numbers, counts = np.unique(days, return_counts=True)
    day = int(numbers[counts.argmax()])
    older, events, visits = {}, {}, list[Visit]()
    for user in range(data.users):
        mine = slice(int(data.begin[user]), int(data.begin[user + 1]))
        today = days[mine] == day
        if not today.any():
            continue
        own, times = data.events[mine], data.times[mine][today] - day * DAY_S
        events[user] = own[today]
        low, high = np.log(items)
        length = round(float(np.exp(np.random.default_rng(user).uniform(low, high))))
        older[user] = np.resize(own, -(-length // len(own)) * len(own))[-length:]
        visits += _visits(user, times, every)
    visits.sort(key=lambda visit: visit.at)  # stable: a user's own stay in order
    return Day(datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat(), tuple(visits), older, events)


def _visits(user: int, times: NDArray[np.int64], every: int) -> Iterator[Visit]:
    begin = 0
    for end in range(1, len(times) + 1):
        leaves = end == len(times) or times[end] - times[end - 1] > PAUSE_S
        if leaves or end - begin == every:
            yield Visit(user, int(times[end - 1]), begin, end)
            begin = end


def first_visits(visits: Sequence[Visit]) -> int:
    """How many of them are a user's first."""
    return len({visit.user for visit in visits})
