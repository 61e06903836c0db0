"""Live-ness per item: recallable and the request's tag filter, combined exactly."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.catalog.catalog import Catalog
from engine.catalog.tags import TagIndex
from engine.request import TagFilter


@dataclass(frozen=True, slots=True)
class FilterKey:
    """A filter up to the order and repetition of its tags: equal keys select the same items."""

    any: frozenset[str] = frozenset()
    all: frozenset[str] = frozenset()
    none: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tags: TagFilter | None) -> "FilterKey":
        return cls() if tags is None else cls(frozenset(tags.any), frozenset(tags.all), frozenset(tags.none))


def live_items(catalog: Catalog, key: FilterKey) -> NDArray[np.bool_]:
    """The items that may be recalled under a filter, bool ``[items]``. A tag that no item has is an empty bitmap.

    Takes time for the items that hold the filter's tags, not for tags times items.
    """
    tags = TagIndex.of(catalog.tags, catalog.trie.items)
    live = catalog.recallable.copy()
    if key.any:
        wanted = np.zeros_like(live)
        for tag in key.any:
            wanted[tags.items_of(tag)] = True
        live &= wanted
    if key.all:
        held = np.zeros(len(live), dtype=np.int32)
        for tag in key.all:
            held[tags.items_of(tag)] += 1
        live &= held == len(key.all)
    for tag in key.none:
        live[tags.items_of(tag)] = False
    return live
