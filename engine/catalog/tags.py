"""Item tags: a bitmap for a tag that many items hold, a list of items for one that few hold."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.catalog.bits import pack_bits, unpack_bits

DENSE = 32
"""A tag has a bitmap if more than one in ``DENSE`` items hold it: there the bitmap is smaller than int32 numbers."""


class TagIndex(Mapping[str, NDArray[np.bool_]]):
    """A mapping from tag name to a bool bitmap over items, built on access; tags sorted by name, none without items.

    - ``names``; ``size``: items of the catalog
    - ``begin`` int64 ``[tags + 1]``: each tag's run in ``items_flat`` int32, ascending item indexes; empty for one
      with a bitmap
    - ``dense`` int32 ``[bitmaps]``: which tags have a bitmap, ascending; ``bits`` uint8 ``[bitmaps, ceil(size / 8)]``,
      the lowest bit first
    """

    def __init__(
        self,
        names: tuple[str, ...],
        begin: NDArray[np.int64],
        items_flat: NDArray[np.int32],
        dense: NDArray[np.int32],
        bits: NDArray[np.uint8],
        size: int,
    ) -> None:
        self.names = names
        self.begin = begin
        self.items_flat = items_flat
        self.dense = dense
        self.bits = bits
        self.size = size
        self._number = {name: number for number, name in enumerate(names)}
        self._bitmap = {int(number): row for row, number in enumerate(dense)}

    @classmethod
    def of(cls, tags: Mapping[str, NDArray[np.bool_]], size: int) -> "TagIndex":
        """``tags`` itself if it is an index."""
        if isinstance(tags, TagIndex):
            return tags
        names = tuple(sorted(tags))
        bitmaps = {number: pack_bits(tags[name]) for number, name in enumerate(names)}
        return cls._canonical(names, bitmaps, np.empty(0, np.int64), size)

    @classmethod
    def from_pairs(
        cls, names: Sequence[str], tag: NDArray[np.integer], item: NDArray[np.integer], size: int
    ) -> "TagIndex":
        """From (tag number, item) pairs in any order, repeats allowed; ``tag`` counts into ``names``."""
        by_name = sorted(range(len(names)), key=names.__getitem__)
        rank = np.empty(len(names), dtype=np.uint16 if len(names) < 1 << 16 else np.int64)
        rank[by_name] = np.arange(len(names))
        number = rank.take(tag)
        held = np.bincount(number, minlength=len(names))
        bitmaps = {}
        if (held * DENSE > size).any():
            order = np.argsort(number, kind="stable")  # of 16 bits: a radix sort
            ends = np.cumsum(held)
            for dense in np.flatnonzero(held * DENSE > size):
                bitmap = np.zeros(size, dtype=np.bool_)
                bitmap[item.take(order[ends[dense] - held[dense] : ends[dense]])] = True
                bitmaps[int(dense)] = pack_bits(bitmap)
            few = (held * DENSE <= size)[number]
            number, item = number[few], item[few]
        keys = number.astype(np.int64) * size + item
        return cls._canonical(tuple(names[i] for i in by_name), bitmaps, keys, size)

    @classmethod
    def _canonical(
        cls, names: tuple[str, ...], bitmaps: dict[int, NDArray[np.uint8]], keys: NDArray[np.int64], size: int
    ) -> "TagIndex":
        """From bitmaps by tag number and keys (tag number x size + item) in any order: equal tags give equal arrays."""
        keys = np.sort(keys)  # not np.unique: it hashes, ten times slower
        keys = keys[np.diff(keys, prepend=-1) > 0]
        begin = np.searchsorted(keys, np.arange(len(names) + 1, dtype=np.int64) * size)
        held = np.diff(begin)
        for number, bits in bitmaps.items():
            held[number] = np.bitwise_count(bits).sum(dtype=np.int64)
        grown = [n for n in np.flatnonzero(held * DENSE > size).tolist() if n not in bitmaps]
        shrunk = [n for n in bitmaps if held[n] * DENSE <= size]
        if grown or shrunk:
            as_keys = [n * size + np.flatnonzero(unpack_bits(bitmaps.pop(n), size)) for n in shrunk]
            for number in grown:
                bitmap = np.zeros(size, dtype=np.bool_)
                bitmap[keys[begin[number] : begin[number + 1]] - number * size] = True
                bitmaps[number] = pack_bits(bitmap)
            keys = np.concatenate([keys[~np.isin(keys // size, grown)], *as_keys])
            keys.sort()
        used = np.flatnonzero(held)
        begin = np.searchsorted(keys, np.append(used, len(names)).astype(np.int64) * size)
        place = {int(number): at for at, number in enumerate(used)}
        dense = sorted(number for number in bitmaps if number in place)
        return cls(
            tuple(names[number] for number in used),
            begin.astype(np.int64),
            (keys % max(size, 1)).astype(np.int32),
            np.array([place[number] for number in dense], dtype=np.int32),
            np.stack([bitmaps[n] for n in dense]) if dense else np.empty((0, -(-size // 8)), np.uint8),
            size,
        )

    def take(self, rows: NDArray[np.integer]) -> "TagIndex":
        """The tags of the items ``rows`` (distinct), in that order."""
        position = np.full(self.size, -1, dtype=np.int32)
        position[rows] = np.arange(len(rows), dtype=np.int32)
        bitmaps = {
            int(number): pack_bits(unpack_bits(bits, self.size).take(rows))
            for number, bits in zip(self.dense, self.bits, strict=True)
        }
        number = np.repeat(np.arange(len(self.names), dtype=np.int64), np.diff(self.begin))
        item = position.take(self.items_flat)
        kept = item >= 0
        return self._canonical(self.names, bitmaps, number[kept] * len(rows) + item[kept], len(rows))

    def joined(self, other: "TagIndex") -> "TagIndex":
        """The tags of this index's items followed by those of the other's."""
        names = tuple(sorted({*self.names, *other.names}))
        size = self.size + other.size
        dense = {name for index in (self, other) for name in map(index.names.__getitem__, index.dense)}
        bitmaps, keys = {}, [np.empty(0, dtype=np.int64)]
        for number, name in enumerate(names):
            if name in dense:
                bitmaps[number] = pack_bits(np.concatenate([self.bitmap(name), other.bitmap(name)]))
            else:
                for index, shift in ((self, 0), (other, self.size)):
                    keys.append(number * size + shift + index.items_of(name).astype(np.int64))
        return self._canonical(names, bitmaps, np.concatenate(keys), size)

    def row_of(self, tag: str) -> int | None:
        """The tag's row in ``bits``, if it has a bitmap."""
        return self._bitmap.get(self._number.get(tag, -1))

    def run_of(self, tag: str) -> slice:
        """The tag's run in ``items_flat``; empty for a tag that no item has, or that has a bitmap."""
        number = self._number.get(tag)
        return slice(0) if number is None else slice(int(self.begin[number]), int(self.begin[number + 1]))

    def items_of(self, tag: str) -> NDArray[np.int32]:
        """Ascending indexes of the items that hold ``tag``; empty for a tag that no item has."""
        row = self.row_of(tag)
        if row is None:
            return self.items_flat[self.run_of(tag)]
        return np.flatnonzero(unpack_bits(self.bits[row], self.size)).astype(np.int32)

    def held_by(self, tag: str, items: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which of the items hold ``tag``, bool ``[n]``, in time for these items only."""
        row = self.row_of(tag)
        if row is not None:
            bits = self.bits[row].take(items >> 3) >> (items & 7).astype(np.uint8)
            held: NDArray[np.bool_] = (bits & 1).view(np.bool_)
            return held
        holders = self.items_flat[self.run_of(tag)]
        if not len(holders):
            return np.zeros(len(items), dtype=np.bool_)
        found: NDArray[np.bool_] = holders.take(np.searchsorted(holders, items), mode="clip") == items
        return found

    def bitmap(self, tag: str) -> NDArray[np.bool_]:
        """bool ``[size]``; empty for a tag that no item has."""
        row = self.row_of(tag)
        if row is not None:
            return unpack_bits(self.bits[row], self.size)
        bitmap = np.zeros(self.size, dtype=np.bool_)
        bitmap[self.items_of(tag)] = True
        return bitmap

    def __getitem__(self, tag: str) -> NDArray[np.bool_]:
        if tag not in self._number:
            raise KeyError(tag)
        return self.bitmap(tag)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
