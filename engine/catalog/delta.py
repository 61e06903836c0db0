"""Deltas: what a version changes of its parent, and what a chain of them changes of a base."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from engine.catalog.build import leaf_order
from engine.catalog.catalog import Catalog, Ids, joined_ids
from engine.catalog.lookup import IdIndex
from engine.catalog.rows import IntArray, RowMap
from engine.errors import CatalogError

_Comparison = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""Rows of the base and numbers of the searches to whether each row comes before the item searched for."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A version that says only what it changes.

    - ``parent``: the version that it changes
    - ``upserts``: items that are new, or replace the one of the same id; none or more, in leaf order
    - ``withdrawn``: ids of items that are no longer recallable; they keep their SID. An id that the parent lacks
      changes nothing. No id is among the upserts too
    - ``stands_for``: how many deltas in a row it is made of
    """

    version: str
    parent: str
    upserts: Catalog
    withdrawn: Ids
    stands_for: int = 1

    def followed_by(self, later: "Delta") -> "Delta":
        """What both change, as one. Their items are of one kind."""
        kept, _ = _left_by(later, self.upserts)
        joined = kept.joined(later.upserts)
        gone = _without(self.withdrawn, later.upserts.ids)
        gone_too = _without(_without(later.withdrawn, self.upserts.ids), gone)
        return Delta(
            later.version,
            self.parent,
            joined.take(leaf_order(joined)) if joined.items else joined,
            joined_ids(gone, gone_too),
            self.stands_for + later.stands_for,
        )


def folded(deltas: Sequence[Delta]) -> Delta:
    """What deltas, each of the one before, change as one; by halves, so that no item is moved often."""
    if len(deltas) == 1:
        return deltas[0]
    middle = len(deltas) // 2
    return folded(deltas[:middle]).followed_by(folded(deltas[middle:]))


@dataclass(frozen=True, slots=True)
class Overlay:
    """What a chain of deltas changes of a base, as one.

    - ``added``: the items that are new or changed, in leaf order
    - ``before``: int32 ``[added]``: how many items of the base come before each
    - ``removed``: int32, ascending: items of the base that one of ``added`` replaces
    - ``withdrawn``: int32, ascending: items of the base that are no longer recallable, removed ones perhaps among them
    """

    added: Catalog
    before: IntArray
    removed: IntArray
    withdrawn: IntArray

    @classmethod
    def nothing(cls, base: Catalog) -> "Overlay":
        none = np.empty(0, dtype=np.int32)
        return cls(base.take(none), none, none, none)

    def rows(self, base: int, device: torch.device) -> RowMap:
        return RowMap.of(base, self.before, self.removed, device)

    def followed_by(self, delta: Delta, base: Catalog, ids: IdIndex) -> "Overlay":
        """What this and then ``delta`` change of ``base``, whose ids ``ids`` indexes.

        Takes time for the changes and the logarithm of the base. Raises CatalogError ``incompatible`` for a delta whose
        items are of another kind than those of the base.
        """
        check_same_kind(base, delta.upserts)
        added, rows = _left_by(delta, self.added)
        new = delta.upserts
        before = np.concatenate([self.before[rows], _rank_in(base, new)])
        joined = added.joined(new)
        order = leaf_order(joined) if joined.items else np.empty(0, dtype=np.intp)
        removed = _merged(self.removed, ids.find_column(new.ids))
        withdrawn = _merged(self.withdrawn, ids.find_column(delta.withdrawn))
        return Overlay(joined.take(order), before[order], removed, withdrawn)

    def merged_into(self, base: Catalog, version: str) -> Catalog:
        """The catalog that a build of all items of the version would make."""
        if len(self.withdrawn):
            recallable = base.recallable.copy()
            recallable[self.withdrawn] = False
            base = replace(base, recallable=recallable)
        return base.joined(self.added).take(self.rows(base.items, torch.device("cpu")).rows, version)


def check_same_kind(base: Catalog, items: Catalog) -> None:
    """Raises CatalogError ``incompatible`` unless ``items`` could stand among those of ``base``."""
    if (items.model, items.sizes) != (base.model, base.sizes):
        raise CatalogError("incompatible", f"items of model {items.model!r} in a catalog of {base.model!r}")
    if isinstance(items.ids, np.ndarray) is not isinstance(base.ids, np.ndarray):
        raise CatalogError("incompatible", "item ids are integers in one and strings in the other")
    for name, column in items.fields.items():
        if name not in base.fields:
            raise CatalogError("incompatible", f"the catalog has no field {name!r}: that takes a new base")
        if base.fields[name].type != column.type:
            raise CatalogError("incompatible", f"field {name!r} is {base.fields[name].type}, not {column.type}")


def _left_by(delta: Delta, items: Catalog) -> tuple[Catalog, NDArray[np.intp]]:
    """The items that a delta leaves, as it leaves them, and which those are."""
    if not items.items:
        return items, np.empty(0, dtype=np.intp)
    ids = IdIndex(items.ids)
    recallable, kept = items.recallable.copy(), np.ones(items.items, dtype=np.bool_)
    gone, again = ids.find_column(delta.withdrawn), ids.find_column(delta.upserts.ids)
    recallable[gone[gone >= 0]] = False
    kept[again[again >= 0]] = False
    rows = np.flatnonzero(kept)
    return replace(items, recallable=recallable).take(rows), rows


def _without(ids: Ids, others: Ids) -> Ids:
    """The ids that are not among ``others``."""
    if not len(ids) or not len(others):
        return ids
    new = IdIndex(others).find_column(ids) < 0
    return ids[new] if isinstance(ids, np.ndarray) else ids.filter(pa.array(new))


def _merged(rows: IntArray, found: IntArray) -> IntArray:
    return np.union1d(rows, found[found >= 0]).astype(np.int32)


def _rank_in(base: Catalog, items: Catalog) -> IntArray:
    """How many items of ``base`` come before each of ``items``, int32; both in leaf order."""
    whole = np.zeros(items.items, dtype=np.int64), np.full(items.items, base.items, dtype=np.int64)
    begin = _bisect(*whole, lambda rows, at: _less(base.sids, items.sids, rows, at, equal=False))
    end = _bisect(begin, whole[1], lambda rows, at: _less(base.sids, items.sids, rows, at, equal=True))
    shared = np.flatnonzero(begin < end)  # the base has their leaf
    inside = _bisect(begin[shared], end[shared], lambda rows, at: _comes_first(base, rows, items, shared[at]))
    begin[shared] = inside
    return begin.astype(np.int32)


def _bisect(low: NDArray[np.int64], high: NDArray[np.int64], before: _Comparison) -> NDArray[np.int64]:
    """For each search the first row from ``low`` to before ``high`` that is not ``before`` its item; all in step."""
    low, high = low.copy(), high.copy()
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) >> 1
        right = before(middle, open_)
        low[open_[right]] = middle[right] + 1
        high[open_[~right]] = middle[~right]
    return low


def _less(
    sids: NDArray[np.integer], wanted: NDArray[np.integer], rows: NDArray[np.int64], at: NDArray[np.int64], equal: bool
) -> NDArray[np.bool_]:
    """Whether the SIDs of ``rows`` are less than (or equal to) the wanted ones."""
    left, right = sids.take(rows, axis=0), wanted.take(at, axis=0)
    less = np.full(len(rows), equal)
    for level in reversed(range(left.shape[1])):
        a, b = left[:, level], right[:, level]
        less = (a < b) | ((a == b) & less)
    return less


def _comes_first(base: Catalog, rows: NDArray[np.int64], items: Catalog, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the base's items ``rows`` come before the items ``at`` of the same SID: by rank, then by id."""
    if isinstance(base.ids, np.ndarray):
        first = base.ids.take(rows) < items.ids.take(at)
    else:
        first = pc.less(base.ids.take(pa.array(rows)), items.ids.take(pa.array(at))).to_numpy(zero_copy_only=False)
    left, right = base.ranks(rows), items.ranks(at)
    comes_first: NDArray[np.bool_] = (left < right) | ((left == right) & first)
    return comes_first
