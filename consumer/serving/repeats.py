"""Replies kept for a while, so that a request that comes again is answered again without the engine.

It comes again after a rebalance or a restart of its partition's owner (the same record), or because its client sent it
twice (the same bytes under the same correlation id).
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from threading import Lock

import msgspec
from xxhash import xxh3_128_digest

from consumer.serving.forgotten import Forgotten
from consumer.serving.settings import BatchSettings
from consumer.wire.dead_letter import SourceRecord
from consumer.wire.headers import RequestHeaders

Identity = Hashable
"""Equal for two records only if the same reply answers both."""

_PACK = msgspec.msgpack.Encoder().encode


def identity_of(record: SourceRecord, headers: RequestHeaders, *, placed: bool = False) -> Identity:
    """Of all that the reply depends on but the catalog, and of the correlation id, without one of the record's place.

    A topic has its own defaults, a record that was written over a deleted one has other bytes. ``placed``: the reply
    depends on the records before it, so that only the same record is the same request.
    """
    name, digest = headers.correlation_id, xxh3_128_digest(record.value or b"")
    place = (record.partition, record.offset) if name is None or placed else None
    # Packed, as thousands are kept: one object, which also knows its hash.
    return _PACK((record.topic, headers.reply_topic, headers.reply_partition, place, name, record.key, digest))


class KeptReply(msgspec.Struct, frozen=True, gc=False):
    """A reply to ``user`` that the broker confirmed; ``catalog`` is the version in it, ``at`` seconds of the clock,
    ``admitted`` those at which its request was read.
    """

    value: bytes
    catalog: str
    at: float
    user: str | None
    admitted: float


class RepeatCache:
    """The least recently used ones go first: by count, by bytes, and all by age. Thread-safe.

    A reply is found only while its catalog version is the one that the request would be served from now.
    """

    def __init__(
        self, settings: BatchSettings, active_catalog: Callable[[], str | None], clock: Callable[[], float]
    ) -> None:
        self.enabled = settings.repeat_entries > 0
        self._entries, self._bytes, self._age_s = settings.repeat_entries, settings.repeat_bytes, settings.repeat_age_s
        self._active_catalog = active_catalog
        self._clock = clock
        self._kept: OrderedDict[Identity, KeptReply] = OrderedDict()
        """The least recently used first."""
        self._forgotten = Forgotten()
        self._lock = Lock()
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, identity: Identity, value: bytes, catalog: str, user: str | None = None) -> None:
        now = self._clock()
        self.put_all([(identity, KeptReply(value, catalog, now, user, now))])

    def put_all(self, answers: Iterable[tuple[Identity, KeptReply]]) -> None:
        """Keep replies, but to users who were forgotten since their requests were read."""
        kept = self._kept
        with self._lock:
            covers = self._forgotten.covers if len(self._forgotten) else None
            for identity, answered in answers:
                if covers and answered.user is not None and covers(answered.user, answered.admitted):
                    continue
                if identity in kept:
                    self._drop(identity)
                kept[identity] = answered
                self.size += len(answered.value)
            while len(kept) > self._entries or self.size > self._bytes:
                _, oldest = kept.popitem(last=False)
                self.size -= len(oldest.value)

    def get(self, identity: Identity, catalog: str | None) -> KeptReply | None:
        """The reply to the same request; ``catalog`` is the version that it asks for."""
        if identity not in self._kept:
            return None
        with self._lock:
            found = self._kept.get(identity)
            if found is None:
                return None
            if self._clock() - found.at > self._age_s:
                self._drop(identity)
                return None
            if found.catalog != (catalog or self._active_catalog()):
                return None
            self._kept.move_to_end(identity)
            return found

    def forget(self, user: str) -> None:
        """Drop the user's replies; those that are under way are not kept any more."""
        with self._lock:
            self._forgotten.add(user, self._clock())
            for identity in [identity for identity, answered in self._kept.items() if answered.user == user]:
                self._drop(identity)

    def _drop(self, identity: Identity) -> None:
        self.size -= len(self._kept.pop(identity).value)
