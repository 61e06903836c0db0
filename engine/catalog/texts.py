"""Hashes and comparisons of many strings at once, eight bytes at a time."""

import secrets
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SEED = np.uint64(secrets.randbits(64) | 1)  # secrets: nobody can make ids that share a hash
_MIX = np.uint64(secrets.randbits(64) | 1)
_WORD = 8
_TAIL = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], dtype=np.uint64)
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Texts:
    """Strings as places in shared text: ``begin`` and ``length`` int32 ``[n]`` in bytes; ``text`` uint8, 8 or more."""

    begin: NDArray[np.int32]
    length: NDArray[np.int32]
    text: NDArray[np.uint8]

    @classmethod
    def of(cls, strings: pa.Array) -> Self:
        """A view of a pyarrow string array without nulls."""
        _, offsets, data = strings.buffers()
        ends = np.frombuffer(offsets, dtype=np.int32)[strings.offset :][: len(strings) + 1]
        text = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        if len(text) < _WORD:
            text = np.pad(text, (0, _WORD - len(text)))
        return cls(ends[:-1], np.diff(ends), text)

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: NDArray[np.integer]) -> "Texts":
        return Texts(self.begin.take(rows), self.length.take(rows), self.text)

    def words(self, at: int) -> NDArray[np.uint64]:
        """The eight bytes from byte ``at`` of each string, which is longer than that; zeros beyond its end."""
        last = len(self.text) - _WORD
        windows: NDArray[np.uint64] = np.ndarray((last + 1,), "<u8", self.text, strides=(1,))
        begin = self.begin + np.int64(at)
        words: NDArray[np.uint64] = windows[np.minimum(begin, last)]  # take would copy them all
        late = np.flatnonzero(begin > last)  # the window was moved back, so as not to leave the text
        words[late] >>= (_WORD * (begin[late] - last)).astype(np.uint64)
        words &= _TAIL.take(self.length - at, mode="clip")
        return words

    def equal(self, other: "Texts") -> NDArray[np.bool_]:
        """Which strings equal those at the same places of ``other``, bool ``[n]``."""
        same: NDArray[np.bool_] = self.length == other.length
        at, open_ = 0, np.flatnonzero(same & (self.length > 0))
        while len(open_):
            alike = self.take(open_).words(at) == other.take(open_).words(at)
            same[open_[~alike]] = False
            at += _WORD
            open_ = open_[alike & (self.length[open_] > at)]
        return same


def hash_texts(texts: Texts) -> NDArray[np.int64]:
    """A hash of each string, int64 ``[n]``; another one in every process."""
    parts = [_hash(texts.take(np.arange(begin, min(begin + _CHUNK, len(texts))))) for begin in _chunks(len(texts))]
    return np.concatenate(parts) if len(parts) != 1 else parts[0]


def _chunks(count: int) -> range:
    return range(0, max(count, 1), _CHUNK)


def _hash(texts: Texts) -> NDArray[np.int64]:
    hashes = (texts.length.astype(np.uint64) + _SEED) * _MIX
    at, open_ = 0, np.flatnonzero(texts.length > 0)
    while len(open_):
        mixed = hashes.take(open_)
        mixed ^= texts.words(at) if len(open_) == len(texts) else texts.take(open_).words(at)
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(32)
        mixed *= _SEED
        hashes[open_] = mixed
        at += _WORD
        open_ = open_[texts.length[open_] > at]
    return hashes.view(np.int64)
