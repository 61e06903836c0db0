"""A request's tag filter, by meaning, and the items that pass it one by one."""

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


def passing(catalog: Catalog, key: FilterKey, items: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which of a few items may be recalled under a filter, bool ``[n]``, in time for these items only."""
    live = catalog.recallable.take(items)
    if key.any:
        live &= np.logical_or.reduce([catalog.tags.held_by(tag, items) for tag in key.any])
    for tag in key.all:
        live &= catalog.tags.held_by(tag, items)
    for tag in key.none:
        live &= ~catalog.tags.held_by(tag, items)
    return live
