"""Item id to item index: a vectorised hash index on the host."""

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.catalog.catalog import Ids
from engine.catalog.texts import Texts, hash_column, hash_texts
from engine.errors import RequestError
from engine.request import ItemIds

_SEED = secrets.randbits(64) | 1  # a secret: nobody can make a catalog whose ids share a bucket
_MIX = np.uint64(_SEED)


class HashIndex:
    """Maps int64 keys to their positions. Entries are sorted by hash bucket; a lookup walks all buckets in step.

    A round touches every unresolved key once; with at least as many buckets as keys few rounds are needed.
    """

    def __init__(self, keys: NDArray[np.int64]) -> None:
        bits = max(1, int(2 * len(keys) - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        placed = self._bucket(keys)
        placed <<= 31  # bucket and position sort as one number: several times faster than an argsort
        placed |= np.arange(len(keys))
        placed.sort()
        self._position = (placed & (1 << 31) - 1).astype(np.int32)
        self._keys = keys.take(self._position)
        placed >>= 31
        self._begin = np.zeros((1 << bits) + 1, dtype=np.int32)
        np.cumsum(np.bincount(placed, minlength=1 << bits), out=self._begin[1:])

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._position.nbytes + self._begin.nbytes

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.int32]:
        """Position of each key, -1 where there is none; of equal keys the first. int32 ``[n]``."""
        if not len(self._keys):
            return np.full(len(keys), -1, dtype=np.int32)
        bucket = self._bucket(keys)
        at = self._begin.take(bucket)
        # Most stand first in their bucket. Where a bucket is empty, another one's key stands there, which differs.
        found = self._position.take(at, mode="clip")
        open_ = np.flatnonzero(self._keys.take(at, mode="clip") != keys)
        found[open_] = -1
        at, end, wanted = at[open_], self._begin.take(bucket[open_] + 1), keys[open_]
        while len(open_):
            at += 1
            rest = np.flatnonzero(at < end)
            open_, at, end, wanted = open_[rest], at[rest], end[rest], wanted[rest]
            found[open_] = np.where(self._keys.take(at) == wanted, self._position.take(at), -1)
            rest = np.flatnonzero(found[open_] < 0)
            open_, at, end, wanted = open_[rest], at[rest], end[rest], wanted[rest]
        return found

    def all_of(self, key: int) -> NDArray[np.int32]:
        """Every position of one key."""
        bucket = int(self._bucket(np.array([key], dtype=np.int64))[0])
        run = slice(int(self._begin[bucket]), int(self._begin[bucket + 1]))
        twins: NDArray[np.int32] = self._position[run][self._keys[run] == key]
        return twins

    def _bucket(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        mixed = keys.view(np.uint64) * _MIX
        mixed ^= mixed >> np.uint64(32)
        mixed *= _MIX
        bucket: NDArray[np.int64] = (mixed >> self._shift).view(np.int64)
        return bucket


class IdIndex:
    """Item ids of one catalog to item indexes; int64 ids directly, strings through a hash and a comparison."""

    def __init__(self, ids: Ids) -> None:
        self._is_text = not isinstance(ids, np.ndarray)
        if isinstance(ids, np.ndarray):
            self._index = HashIndex(ids)
        else:
            self._texts = Texts.of(ids)
            self._index = HashIndex(hash_column(self._texts))

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    def check(self, ids: ItemIds) -> None:
        """Raises RequestError ``bad_request`` for the other kind of id."""
        if len(ids) and isinstance(ids, np.ndarray) is self._is_text:
            asked, declared = ("strings", "integers") if not self._is_text else ("integers", "strings")
            raise RequestError("bad_request", f"item ids are {asked}, this catalog's are {declared}")

    def find(self, ids: ItemIds) -> NDArray[np.int32]:
        """Item index of each id or -1, int32 ``[n]``. Raises RequestError ``bad_request`` for the other kind of id."""
        if len(ids) == 0:
            return np.empty(0, dtype=np.int32)
        self.check(ids)
        if not isinstance(ids, np.ndarray):
            return self._find_texts(_asked_texts(ids))
        if ids.dtype != np.int64:
            raise RequestError("bad_request", f"item ids are {ids.dtype}, not int64")
        return self._index.find(ids)

    def find_column(self, ids: Ids) -> NDArray[np.int32]:
        """As ``find``, for a catalog's column of the same kind."""
        return self._index.find(ids) if isinstance(ids, np.ndarray) else self._find_texts(Texts.of(ids))

    def _find_texts(self, asked: Texts) -> NDArray[np.int32]:
        head = asked.head()
        hashes = hash_texts(asked, head)
        found = self._index.find(hashes)
        same = self._texts.equal_at(np.maximum(found, 0), asked, head) if len(self._texts) else found >= 0
        wrong = np.flatnonzero(~same & (found >= 0))
        found[~same] = -1
        for i in wrong:  # another string of the same hash stands first
            twins = self._index.all_of(int(hashes[i]))
            one = asked.take(np.repeat(i, len(twins)))
            right = twins[one.equal(self._texts.take(twins), one.head())]
            found[i] = right[0] if len(right) else -1
        return found


def _asked_texts(ids: Sequence[str]) -> Texts:
    try:
        return Texts.of_strings(ids)
    except UnicodeEncodeError as error:
        raise RequestError("bad_request", "an item id is not valid text") from error
