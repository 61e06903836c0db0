"""Hashes and comparisons of many strings at once, eight bytes at a time."""

import secrets
from collections.abc import Sequence
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
    """Strings as places in shared text: ``begin`` and ``length`` int32 ``[n]`` in bytes; ``text`` uint8, 8 or more.

    ``width``: the length of all of them, where they have one, as ids often do; ``step``: how far apart they then begin,
    where that is always as far. Either makes them several times faster to read.
    """

    begin: NDArray[np.int32]
    length: NDArray[np.int32]
    text: NDArray[np.uint8]
    width: int | None = None
    step: int | None = None

    @classmethod
    def of(cls, strings: pa.Array) -> Self:
        """A view of a pyarrow string array without nulls."""
        _, offsets, data = strings.buffers()
        ends = np.frombuffer(offsets, dtype=np.int32)[strings.offset :][: len(strings) + 1]
        text = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        if len(text) < _WORD:
            text = np.pad(text, (0, _WORD - len(text)))
        return cls._of_runs(ends[:-1], ends[1:], text, gap=0)

    @classmethod
    def of_strings(cls, strings: Sequence[str]) -> Self:
        """Copies of one or more strings, sooner than through pyarrow; UnicodeEncodeError for what is no text."""
        text = np.frombuffer("\0".join(strings).encode() + bytes(_WORD), dtype=np.uint8)
        stops = np.flatnonzero(text[: -_WORD + 1] == 0)
        if len(stops) != len(strings):  # one of them holds a zero
            return cls.of(pa.array(strings, pa.string()))
        begin = np.zeros(len(stops), dtype=np.int32)
        begin[1:] = stops[:-1] + 1
        return cls._of_runs(begin, stops.astype(np.int32), text, gap=1)

    @classmethod
    def _of_runs(cls, begin: NDArray[np.int32], end: NDArray[np.int32], text: NDArray[np.uint8], gap: int) -> Self:
        """Strings that stand in ``text`` one after the other, ``gap`` bytes apart."""
        length = end - begin
        width = int(length[0]) if len(length) else 0
        if not len(length) or length.min() != width or length.max() != width:
            return cls(begin, length, text)
        return cls(begin, np.broadcast_to(np.int32(width), length.shape), text, width, width + gap)

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: NDArray[np.integer]) -> "Texts":
        if self.width is None:
            return Texts(self.begin.take(rows), self.length.take(rows), self.text)
        begin = self.begin.take(rows) if self.step is None else self.begin[:1] + rows * np.int32(self.step)
        return Texts(begin, np.broadcast_to(np.int32(self.width), rows.shape), self.text, self.width)

    def words(self, first: int, count: int) -> Words:
        """Words ``first`` to before ``first + count`` of each string, ``[count, n]``; zeros beyond its end."""
        at = np.arange(first * _WORD, (first + count) * _WORD, _WORD)[:, None]
        words = self._evenly(first, count) if self.step is not None else None
        if words is None:
            words = self._anywhere(self.begin + at)
        words &= _TAIL.take((self.length if self.width is None else self.width) - at, mode="clip")
        return words

    def _evenly(self, first: int, count: int) -> Words | None:
        """Bytes from the beginning of each of some words, if the text goes that far."""
        begin = (int(self.begin[0]) if len(self) else 0) + first * _WORD
        if begin + (len(self) - 1) * (self.step or 0) + count * _WORD > len(self.text):
            return None
        return np.ndarray((count, len(self)), "<u8", self.text, begin, (_WORD, self.step or 0)).copy()

    def _anywhere(self, begin: NDArray[np.integer]) -> Words:
        """Bytes from each of some places."""
        last = len(self.text) - _WORD
        windows: Words = np.ndarray((last + 1,), "<u8", self.text, strides=(1,))
        words: Words = windows[np.minimum(begin, last)]  # take would copy all windows
        if begin.max(initial=0) > last:  # there a window was moved back, so as not to leave the text
            words >>= (_WORD * np.clip(begin - last, 0, _WORD - 1)).astype(np.uint64)
        return words

    def head(self) -> Words:
        """The first words, as many as the longest string has, but no more than are looked at in one go."""
        return self.words(0, min(_HEAD, -(-int(self.length.max(initial=0)) // _WORD)))

    def equal_at(self, rows: NDArray[np.integer], other: "Texts", head: Words) -> NDArray[np.bool_]:
        """Which of the strings ``rows`` equal those of ``other``, bool ``[n]``; ``head`` is that of ``other``."""
        if not self.step or not other.step or not self.width:
            return other.equal(self.take(rows), head)
        if self.width != other.width:
            return np.zeros(len(rows), dtype=np.bool_)
        same: NDArray[np.bool_] = self.fixed().take(rows) == other.fixed()
        return same

    def fixed(self) -> NDArray[np.bytes_]:
        """One or more strings with a ``step``, as numpy has them. It takes no heed of zeros at an end, but where two
        strings are of one length that tells them apart all the same.
        """
        return np.ndarray((len(self),), f"S{self.width}", self.text, int(self.begin[0]), (self.step or 0,))

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


def all_distinct(strings: pa.Array) -> bool:
    """Whether no two strings of an array without nulls are equal."""
    hashes = hash_column(Texts.of(strings))
    ordered = np.sort(hashes)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return True
    alike = strings.filter(pa.array(np.isin(hashes, twice)))
    return len(alike.dictionary_encode().dictionary) == len(alike)


def _mixed(hashes: Words, words: Words) -> Words:
    mixed = hashes ^ words
    mixed *= _MIX
    mixed ^= mixed >> _HALF
    mixed *= _SEED
    return mixed
