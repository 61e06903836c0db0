"""Hashes and comparisons of many strings at once, eight bytes at a time."""

import secrets
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_SEED = np.uint64(secrets.randbits(64) | 1)  # secrets: nobody can make ids that share a hash
_MIX = np.uint64(secrets.randbits(64) | 1)
_HALF = np.uint64(32)
_WORD = 8
_TAIL = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], dtype=np.uint64)
_HEAD = 8  # words of a string that are looked at in one go; few ids are longer
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

    def words(self, first: int, count: int) -> Words:
        """Words ``first`` to before ``first + count`` of each string, ``[count, n]``; zeros beyond its end."""
        at = np.arange(first * _WORD, (first + count) * _WORD, _WORD)[:, None]
        last = len(self.text) - _WORD
        windows: Words = np.ndarray((last + 1,), "<u8", self.text, strides=(1,))
        begin = self.begin + at
        words: Words = windows[np.minimum(begin, last)]  # take would copy all windows
        if begin.max(initial=0) > last:  # there a window was moved back, so as not to leave the text
            words >>= (_WORD * np.clip(begin - last, 0, _WORD - 1)).astype(np.uint64)
        words &= _TAIL.take(self.length - at, mode="clip")
        return words

    def head(self) -> Words:
        """The first words, as many as the longest string has, but no more than are looked at in one go."""
        return self.words(0, min(_HEAD, -(-int(self.length.max(initial=0)) // _WORD)))

    def equal(self, other: "Texts", head: Words) -> NDArray[np.bool_]:
        """Which strings equal those at the same places of ``other``, bool ``[n]``; ``head`` is that of this one."""
        same: NDArray[np.bool_] = self.length == other.length
        for mine, others in zip(head, other.words(0, len(head)), strict=True):
            same &= mine == others
        at = _HEAD
        while len(open_ := np.flatnonzero(same & (self.length > at * _WORD))):
            same[open_] = (self.take(open_).words(at, 1) == other.take(open_).words(at, 1))[0]
            at += 1
        return same


def hash_texts(texts: Texts, head: Words) -> NDArray[np.int64]:
    """A hash of each string, int64 ``[n]``; another one in every process. ``head`` is that of ``texts``."""
    hashes = (texts.length.astype(np.uint64) + _SEED) * _MIX
    shortest = int(texts.length.min(initial=0))
    for at, words in enumerate(head):
        mixed = _mixed(hashes, words)
        if shortest > at * _WORD:
            hashes = mixed
        else:
            np.copyto(hashes, mixed, where=texts.length > at * _WORD)
    at = _HEAD
    while len(open_ := np.flatnonzero(texts.length > at * _WORD)):
        hashes[open_] = _mixed(hashes[open_], texts.take(open_).words(at, 1)[0])
        at += 1
    return hashes.view(np.int64)


def hash_column(texts: Texts) -> NDArray[np.int64]:
    """As ``hash_texts``, for many strings."""
    hashes = np.empty(len(texts), dtype=np.int64)
    for begin in range(0, len(texts), _CHUNK):
        part = texts.take(np.arange(begin, min(begin + _CHUNK, len(texts))))
        hashes[begin : begin + _CHUNK] = hash_texts(part, part.head())
    return hashes


def _mixed(hashes: Words, words: Words) -> Words:
    mixed = hashes ^ words
    mixed *= _MIX
    mixed ^= mixed >> _HALF
    mixed *= _SEED
    return mixed
