"""Item id to item index: a vectorised hash index on the host."""

import secrets
from collections.abc import Sequence
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from engine.errors import RequestError
from engine.request import ItemIds

_SEED = secrets.randbits(64) | 1  # a secret: nobody can make a catalog whose ids share a bucket
_MIX = np.uint64(_SEED)
_HASH_CHUNK = 4096  # hashing strings holds the GIL: in pieces of about a millisecond


class HashIndex:
    """Maps int64 keys to their positions. Entries are sorted by hash bucket; a lookup walks all buckets in step.

    A round touches every unresolved key once; with at least as many buckets as keys few rounds are needed.
    """

    def __init__(self, keys: NDArray[np.int64]) -> None:
        bits = max(1, int(2 * len(keys) - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        bucket = self._bucket(keys)
        order = np.argsort(bucket, kind="stable").astype(np.int32)
        self._keys = keys[order]
        self._position = order
        counts = np.bincount(bucket, minlength=1 << bits)
        self._begin = np.zeros((1 << bits) + 1, dtype=np.int32)
        np.cumsum(counts, out=self._begin[1:])

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._position.nbytes + self._begin.nbytes

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.int32]:
        """Position of each key, -1 where there is none; of equal keys the first. int32 ``[n]``."""
        found = np.full(len(keys), -1, dtype=np.int32)
        bucket = self._bucket(keys)
        at, end = self._begin.take(bucket), self._begin.take(bucket + 1)
        open_ = np.flatnonzero(at < end)
        at, end, wanted = at[open_], end[open_], keys[open_]
        while len(open_):
            hit = self._keys.take(at) == wanted
            found[open_[hit]] = self._position.take(at[hit])
            at += 1
            rest = np.flatnonzero(~hit & (at < end))
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
    """Item ids of one catalog to item indexes; int64 ids directly, strings through their XXH3 hash and a comparison."""

    def __init__(self, ids: NDArray[np.int64] | pa.Array) -> None:
        self._ids = ids
        self._index = HashIndex(ids if isinstance(ids, np.ndarray) else _hash_column(ids))

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    def find(self, ids: ItemIds) -> NDArray[np.int32]:
        """Item index of each id or -1, int32 ``[n]``. Raises RequestError ``bad_request`` for the other kind of id."""
        if len(ids) == 0:
            return np.empty(0, dtype=np.int32)
        if isinstance(ids, np.ndarray) is not isinstance(self._ids, np.ndarray):
            asked, declared = ("integers", "strings") if isinstance(ids, np.ndarray) else ("strings", "integers")
            raise RequestError("bad_request", f"item ids are {asked}, this catalog's are {declared}")
        if isinstance(ids, np.ndarray) and ids.dtype != np.int64:
            raise RequestError("bad_request", f"item ids are {ids.dtype}, not int64")
        return self._index.find(ids) if isinstance(ids, np.ndarray) else self._find_strings(ids)

    def _find_strings(self, ids: Sequence[str]) -> NDArray[np.int32]:
        try:
            encoded = [item.encode() for item in ids]
        except UnicodeEncodeError as error:
            raise RequestError("bad_request", "an item id is not valid text") from error
        hashes = _hash(encoded)
        found = self._index.find(hashes)
        held = self._ids.take(pa.array(np.maximum(found, 0))).cast(pa.binary())
        same = pc.equal(held, pa.array(encoded, pa.binary())).to_numpy(zero_copy_only=False)
        for i in np.flatnonzero(~same & (found >= 0)):  # another string of the same hash stands first
            twins = self._index.all_of(int(hashes[i]))
            found[i] = next((twin for twin in twins if self._ids[int(twin)].as_py() == ids[int(i)]), -1)
        return found


def _hash_column(strings: pa.Array) -> NDArray[np.int64]:
    hashes = np.empty(len(strings), dtype=np.int64)
    for begin in range(0, len(strings), _HASH_CHUNK):
        chunk = strings.slice(begin, _HASH_CHUNK).cast(pa.binary()).to_pylist()
        hashes[begin : begin + len(chunk)] = _hash(chunk)
    return hashes


def _hash(strings: Sequence[bytes]) -> NDArray[np.int64]:
    hashes = map(xxhash.xxh3_64_intdigest, strings, repeat(_SEED))
    return np.fromiter(hashes, np.uint64, len(strings)).view(np.int64)
