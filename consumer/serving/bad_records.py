"""When so many records are bad that the fault must be ours: a bad deploy must not drain a topic into dead letters."""

from collections import deque
from dataclasses import dataclass
from threading import Lock

from consumer.serving.settings import BatchSettings

_BUCKETS = 60
"""The window moves on by this part of its seconds."""


@dataclass(slots=True)
class _Bucket:
    begin: float
    read: int = 0
    bad: int = 0
    replays: int = 0


class BadRecordLimit:
    """The share of bad records among the last ones that were read. Thread-safe; ``now`` is in seconds.

    The last ones are those of ``bad_window_s``, but never fewer than ``bad_window_records``; fewer are not judged.
    An operator's replay that fails again says nothing new; but anybody can write its header, so no more of these than
    ``bad_window_records`` are left out.
    """

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._buckets: deque[_Bucket] = deque()
        self._all = _Bucket(0.0)
        self._lock = Lock()

    def read(self, records: int, now: float) -> None:
        """So many records came in; whether they are bad is not known yet."""
        with self._lock:
            self._count(now, read=records)

    def bad(self, now: float, *, replay: bool = False) -> str | None:
        """One of them was bad. Returns what is wrong once too many are."""
        with self._lock:
            if replay and self._all.replays < self._settings.bad_window_records:
                self._count(now, replays=1)
                return None
            self._count(now, bad=1)
            read, bad = self._all.read, self._all.bad
        limit = self._settings.bad_share_limit
        if limit == 1 or read < self._settings.bad_window_records or bad <= limit * read:
            return None
        return f"{bad} of the last {read} records were bad, batch.bad_share_limit is {limit:g}"

    def _count(self, now: float, read: int = 0, bad: int = 0, replays: int = 0) -> None:
        buckets, seconds = self._buckets, self._settings.bad_window_s
        if not buckets or now - buckets[-1].begin >= seconds / _BUCKETS:
            buckets.append(_Bucket(now))
        for each in (buckets[-1], self._all):
            each.read += read
            each.bad += bad
            each.replays += replays
        while (
            now - buckets[0].begin > seconds and self._all.read - buckets[0].read >= self._settings.bad_window_records
        ):
            oldest = buckets.popleft()
            self._all.read -= oldest.read
            self._all.bad -= oldest.bad
            self._all.replays -= oldest.replays
