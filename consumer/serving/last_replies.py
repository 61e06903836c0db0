"""Users' last answers, for when there is no time for a new one."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Protocol

import numpy as np

from consumer.histories.operation import UserKey
from consumer.serving.by_user import KeysByUser
from consumer.serving.forgotten import Forgotten
from consumer.serving.ladder import joined
from consumer.serving.load_settings import LoadSettings
from engine.catalog.resident import ResidentCatalog
from engine.errors import RequestError
from engine.request import RecallRequest, RecallResult, Score


class Catalogs(Protocol):
    """``engine.catalog.store.CatalogStore``."""

    def pin(self, version: str | None = None) -> AbstractContextManager[ResidentCatalog]:
        """Raises RequestError ``no_catalog`` or ``unknown_catalog``."""


_Key = tuple[UserKey, str, frozenset[tuple[str, int | str]], Score]

_ENTRY_BYTES = 1_500
"""Memory of an answer beside its items, its scores and the strings of its key."""


@dataclass(frozen=True, slots=True)
class Kept:
    """``at``: seconds of the clock when it was made; ``nbytes``: memory."""

    result: RecallResult
    at: float
    nbytes: int


class LastReplies:
    """One for each user, template, context and score; beyond a count or bytes the oldest go. Thread-safe.

    As histories, those of two topics are apart. ``nbytes``: memory of all.
    """

    def __init__(self, settings: LoadSettings, catalogs: Catalogs, clock: Callable[[], float]) -> None:
        self._settings, self._catalogs, self._clock = settings, catalogs, clock
        self._kept: OrderedDict[_Key, Kept] = OrderedDict()
        self._users: KeysByUser[_Key] = KeysByUser()
        self._forgotten = Forgotten()
        self._lock = Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, user: UserKey | None, request: RecallRequest, result: RecallResult, admitted: float) -> None:
        """Keep an answer in the place of the one before. ``admitted``: when its request was read."""
        if user is None:
            return
        key, bare = _key(user, request), replace(result, sids=None, fields=None)
        with self._lock:
            if self._forgotten.covers(user.user, admitted):
                return
            if key in self._kept:
                self._drop(key)
            kept = self._kept[key] = Kept(bare, self._clock(), _memory_of(key, bare))
            self._users.add(user.user, key)
            self.nbytes += kept.nbytes
            while len(self._kept) > self._settings.last_reply_entries or self.nbytes > self._settings.last_reply_bytes:
                self._drop(next(iter(self._kept)))

    def forget(self, user: str) -> None:
        """Erase all of a user; answers to what was read before are not kept any more."""
        now = self._clock()
        with self._lock:
            self._forgotten.add(user, now)
            for key in self._users.of(user):
                self._drop(key)

    def find(self, user: UserKey | None, request: RecallRequest) -> tuple[RecallResult, float] | None:
        """What of the last answer this request may have now, and its age in seconds; None if nothing."""
        kept = None if user is None else self._kept.get(_key(user, request))
        if kept is None:
            return None
        age = self._clock() - kept.at
        if age > self._settings.last_reply_age_s:
            return None
        try:
            with self._catalogs.pin(request.catalog) as catalog:
                result = _allowed(kept.result, request, catalog)
        except RequestError:  # another kind of item ids, a field that is no more, a version that has gone
            return None
        return (result, age) if len(result.items) else None

    def _drop(self, key: _Key) -> None:
        self.nbytes -= self._kept.pop(key).nbytes
        self._users.discard(key[0].user, key)


def _memory_of(key: _Key, result: RecallResult) -> int:
    user, _, context, _ = key
    items = result.items
    ids = items.nbytes if isinstance(items, np.ndarray) else sum(map(sys.getsizeof, items))
    strings = sys.getsizeof(user.user) + sum(sys.getsizeof(each) for pair in context for each in pair)
    return _ENTRY_BYTES + strings + ids + result.scores.nbytes


def _key(user: UserKey, request: RecallRequest) -> _Key:
    return user, request.template, frozenset(request.context.items()), request.score


def _allowed(result: RecallResult, request: RecallRequest, catalog: ResidentCatalog) -> RecallResult:
    """Live items of this version only, under this request's filter, exclusions and bounds. Raises RequestError."""
    found = catalog.lookup(result.items)
    passed = found >= 0
    passed[passed] = catalog.passes(found[passed], request.filter)
    exclude = request.exclude
    if request.exclude_history and request.history is not None:
        exclude = joined(exclude, request.history)
    if len(exclude):
        passed &= ~np.isin(found, catalog.lookup(exclude))
    if request.max_items_per_sid is not None:
        passed &= _first_of_each(catalog.codes_of(np.maximum(found, 0)), passed, request.max_items_per_sid)
    places = np.flatnonzero(passed)[: request.top_k]
    items = found[places]
    return replace(
        result,
        items=catalog.ids_of(items),
        scores=result.scores[places],
        catalog=catalog.version,
        exhausted=False,
        prefill_ms=0.0,
        decode_ms=0.0,
        sids=catalog.codes_of(items) if request.return_sids else None,
        fields=catalog.fields_of(request.return_fields, items) if request.return_fields else None,
    )


def _first_of_each(codes: np.ndarray, passed: np.ndarray, most: int) -> np.ndarray:
    """Which of the items that passed are among the first ``most`` of their SID."""
    seen: dict[bytes, int] = {}
    kept = np.zeros(len(codes), dtype=np.bool_)
    for place in np.flatnonzero(passed):
        sid = codes[place].tobytes()
        seen[sid] = seen.get(sid, 0) + 1
        kept[place] = seen[sid] <= most
    return kept
