"""Live-ness per item: recallable and the request's tag filter, combined exactly."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.catalog.catalog import Catalog
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
    """The items that may be recalled under a filter, bool ``[items]``. A tag that no item has is an empty bitmap."""
    live = catalog.recallable.copy()
    if key.any:
        wanted = np.zeros_like(live)
        for tag in key.any & catalog.tags.keys():
            wanted |= catalog.tags[tag]
        live &= wanted
    for tag in key.all:
        live &= catalog.tags.get(tag, np.False_)
    for tag in key.none & catalog.tags.keys():
        live &= ~catalog.tags[tag]
    return live
