"""Item tags as posting lists: memory follows the tags that items hold, not tags times items."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray


class TagIndex(Mapping[str, NDArray[np.bool_]]):
    """A mapping from tag name to a bool bitmap over items, built on access.

    ``items_of(tag)`` are the ascending item indexes (int32) that hold the tag. Tags are kept sorted by name.
    """

    def __init__(self, names: tuple[str, ...], begin: NDArray[np.int64], items: NDArray[np.int32], size: int) -> None:
        """``begin`` int64 ``[tags + 1]`` delimits each tag's run in ``items`` int32; ``size``: items of the catalog."""
        self.names = names
        self.begin = begin
        self.items_flat = items
        self.size = size
        self._position = {name: i for i, name in enumerate(names)}

    @classmethod
    def of(cls, tags: Mapping[str, NDArray[np.bool_]], size: int) -> "TagIndex":
        """``tags`` itself if it is an index."""
        return tags if isinstance(tags, TagIndex) else cls.from_bitmaps(tags, size)

    @classmethod
    def from_bitmaps(cls, bitmaps: Mapping[str, NDArray[np.bool_]], size: int) -> "TagIndex":
        names = tuple(sorted(bitmaps))
        runs = [np.flatnonzero(bitmaps[name]).astype(np.int32) for name in names]
        begin = np.concatenate([[0], np.cumsum([len(run) for run in runs], dtype=np.int64)]).astype(np.int64)
        return cls(names, begin, np.concatenate(runs) if runs else np.empty(0, np.int32), size)

    @classmethod
    def from_pairs(
        cls, names: tuple[str, ...], tag: NDArray[np.int64], item: NDArray[np.int64], size: int
    ) -> "TagIndex":
        """From (tag number, item) pairs in any order, repeats allowed; ``tag`` counts into ``names``."""
        by_name = sorted(range(len(names)), key=names.__getitem__)
        rank = np.empty(len(names), dtype=np.int64)
        rank[by_name] = np.arange(len(names))
        keys = np.sort(rank[tag] * size + item)  # not np.unique: it hashes, ten times slower
        keys = keys[np.diff(keys, prepend=-1) > 0]
        begin = np.searchsorted(keys, np.arange(len(names) + 1, dtype=np.int64) * size)
        return cls(tuple(names[i] for i in by_name), begin, (keys % max(size, 1)).astype(np.int32), size)

    def reordered(self, order: NDArray[np.intp]) -> "TagIndex":
        """The same tags after items are rearranged so that new item ``i`` is old item ``order[i]``."""
        position = np.empty(self.size, dtype=np.int64)
        position[order] = np.arange(self.size)
        tag = np.repeat(np.arange(len(self.names)), np.diff(self.begin))
        return TagIndex.from_pairs(self.names, tag, position[self.items_flat], self.size)

    def items_of(self, tag: str) -> NDArray[np.int32]:
        """Ascending indexes of the items that hold ``tag``; empty for a tag that no item has."""
        at = self._position.get(tag)
        return self.items_flat[:0] if at is None else self.items_flat[self.begin[at] : self.begin[at + 1]]

    def __getitem__(self, tag: str) -> NDArray[np.bool_]:
        if tag not in self._position:
            raise KeyError(tag)
        bitmap = np.zeros(self.size, dtype=np.bool_)
        bitmap[self.items_of(tag)] = True
        return bitmap

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
