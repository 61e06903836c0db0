"""A catalog version on the device."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.catalog.catalog import Catalog
from engine.catalog.delta import Delta, Overlay, check_same_kind, folded
from engine.catalog.filters import FilterKey, passing
from engine.catalog.lookup import IdIndex
from engine.catalog.placed import PlacedItems
from engine.catalog.rows import RowMap
from engine.catalog.trie import TrieTensors, trie_tensors
from engine.errors import CatalogError, RequestError
from engine.request import ItemIds, TagFilter

FILTERS_KEPT = 16

Values = TypeVar("Values", list[Any], NDArray[Any])


@dataclass(frozen=True, slots=True)
class _Live:
    counts: Tensor
    total: int


@dataclass(frozen=True, slots=True)
class _Source:
    """Items on the host and the device, with the index of their ids."""

    catalog: Catalog
    ids: IdIndex
    placed: PlacedItems

    @classmethod
    def of(cls, catalog: Catalog, device: torch.device) -> "_Source":
        return cls(catalog, IdIndex(catalog.ids), PlacedItems(catalog, device))


class ResidentCatalog:
    """An immutable version whose trie lies on ``device``; item ids, codes and fields stay on the host.

    - ``code``, ``child_begin``, ``item_begin``: the arrays of ``Trie`` as int32 tensors on the device
    - ``deltas``: how many made it of its base
    - running counts of live items are kept on the device for the ``filters`` least recently used filters

    A version made by a delta has a whole trie and counts of its own; all else it shares with its parent: the items of
    the base, and beside them the few that deltas brought. Safe to use from several threads.
    """

    def __init__(self, catalog: Catalog, device: torch.device, filters: int = FILTERS_KEPT) -> None:
        base = _Source.of(catalog, device)
        self.deltas = 0
        self._set(catalog.version, device, filters, base, None, Overlay.nothing(catalog), None)
        self._place(trie_tensors(base.placed.sids()))

    def changed_by(self, *deltas: Delta) -> "ResidentCatalog":
        """The version that deltas, each of the one before and the first one of this version, make of it.

        Raises CatalogError ``parent`` for a delta of another version, ``incompatible`` for one of other items.
        """
        for delta, version in zip(deltas, (self.version, *(each.version for each in deltas)), strict=False):
            if delta.parent != version:
                raise CatalogError("parent", f"version {delta.version} changes {delta.parent}, not {version}")
            check_same_kind(self._base.catalog, delta.upserts)
        delta = folded(deltas)
        changed = object.__new__(ResidentCatalog)
        changed.deltas = self.deltas + delta.stands_for
        overlay = self._overlay.followed_by(delta, self._base.catalog, self._base.ids)
        same_items = not delta.upserts.items
        added = _Source.of(overlay.added, self.device) if overlay.added.items else None
        rows = self._rows if same_items else overlay.rows(self._base.catalog.items, self.device)
        changed._set(delta.version, self.device, self._filters, self._base, added, overlay, rows)
        if same_items or rows is None:  # the trie stays: only flags change
            changed._place(TrieTensors(self.code, self.child_begin, self.item_begin))
        else:
            changed._place(trie_tensors(changed._all_sids()[:, rows.row_of_item]))
        return changed

    def _set(
        self,
        version: str,
        device: torch.device,
        filters: int,
        base: _Source,
        added: _Source | None,
        overlay: Overlay,
        rows: RowMap | None,
    ) -> None:
        self.version = version
        self.device = device
        self.levels = len(base.catalog.sizes)
        self._base = base
        self._added = added
        self._overlay = overlay
        self._rows = rows  # None: the items of the base as they are
        self._lock = Lock()
        self._filters = filters
        self._filtered: OrderedDict[FilterKey, _Live] = OrderedDict()

    def _place(self, trie: TrieTensors) -> None:
        self.code, self.child_begin, self.item_begin = trie
        self._everything = self._count(FilterKey())

    @property
    def items(self) -> int:
        return self._base.catalog.items if self._rows is None else self._rows.items

    @property
    def overlaid(self) -> int:
        """Items that deltas brought since the base: what the next delta's time grows with."""
        return self._overlay.added.items

    @property
    def base(self) -> PlacedItems:
        """What versions of the same base share on the device."""
        return self._base.placed

    @property
    def own_bytes(self) -> int:
        """Bytes on the device beside the base; counts of one filter among them."""
        brought = self._added.placed.nbytes if self._added is not None else 0
        rows = self._rows.row_of_item.nbytes if self._rows is not None else 0
        trie = sum(tensor.nbytes for tensor in (*self.code, *self.child_begin, *self.item_begin))
        return brought + rows + trie + 2 * self._everything.counts.nbytes

    @property
    def index_bytes(self) -> int:
        """Bytes on the host of the indexes of item ids."""
        return self._base.ids.nbytes + (self._added.ids.nbytes if self._added is not None else 0)

    def merged(self) -> Catalog:
        """The version as one catalog on the host."""
        return self._overlay.merged_into(self._base.catalog, self.version)

    def check_ids(self, ids: ItemIds) -> None:
        """Raises RequestError ``bad_request`` for ids of another kind than this catalog's."""
        self._base.ids.check(ids)

    def lookup(self, ids: ItemIds) -> NDArray[np.int32]:
        """Item index of each id, -1 if unknown, int32 ``[n]``. The wrong kind of id: RequestError ``bad_request``."""
        rows = self._base.ids.find(ids)
        if self._added is None or self._rows is None:
            return rows
        added = self._added.ids.find(ids)
        return self._rows.index_of(np.where(added >= 0, added + np.int32(self._rows.base), rows))

    def codes_of(self, item_indexes: NDArray[np.integer]) -> NDArray[np.int32]:
        """SID codes of items (indexes in ``0 .. items - 1``), int32 ``[n, levels]``."""
        return self._gather(item_indexes, lambda catalog, rows: catalog.sids.take(rows, axis=0)).astype(np.int32)

    def ids_of(self, item_indexes: NDArray[np.integer]) -> ItemIds:
        """Item ids, int64 ``[n]`` or a list of strings."""
        if isinstance(self._base.catalog.ids, np.ndarray):
            numbers: NDArray[np.int64] = self._gather(item_indexes, lambda catalog, rows: catalog.ids.take(rows))
            return numbers
        strings: list[str] = self._gather(item_indexes, lambda catalog, rows: _values(catalog.ids, rows))
        return strings

    def fields_of(self, names: Sequence[str], item_indexes: NDArray[np.integer]) -> Mapping[str, list[object]]:
        """Item fields, ``n`` values each. Raises RequestError ``bad_request`` for a field that the catalog lacks."""
        unknown = [name for name in names if name not in self._base.catalog.fields]
        if unknown:
            raise RequestError("bad_request", f"the catalog has no field {unknown[0]!r}")
        return {name: self._field_of(name, item_indexes) for name in names}

    def _field_of(self, name: str, item_indexes: NDArray[np.integer]) -> list[object]:
        return self._gather(item_indexes, lambda catalog, rows: _values(catalog.fields[name], rows))

    def live_counts(self, tags: TagFilter | None = None) -> Tensor:
        """Running counts of live items, int32 ``[items + 1]`` on the device; items ``i .. j - 1``: ``[j] - [i]``."""
        return self._live(tags).counts

    def live_total(self, tags: TagFilter | None = None) -> int:
        """Live items under a filter."""
        return self._live(tags).total

    def passes(self, item_indexes: NDArray[np.integer], tags: TagFilter | None = None) -> NDArray[np.bool_]:
        """Which of the items may be recalled under a filter, bool ``[n]``, on the host."""
        key = FilterKey.of(tags)
        passed = self._gather(item_indexes, lambda catalog, rows: passing(catalog, key, rows))
        if len(self._overlay.withdrawn):
            rows, withdrawn = self._row_of(item_indexes), self._overlay.withdrawn
            passed &= withdrawn.take(np.searchsorted(withdrawn, rows), mode="clip") != rows
        return passed

    def _gather(
        self, item_indexes: NDArray[np.integer], read: Callable[[Catalog, NDArray[np.integer]], Values]
    ) -> Values:
        """What ``read`` finds of each item, wherever it stands."""
        if self._added is None:
            return read(self._base.catalog, item_indexes)
        rows, base = self._row_of(item_indexes), self._base.catalog.items
        values = read(self._base.catalog, np.minimum(rows, base - 1))
        brought = np.flatnonzero(rows >= base)
        if len(brought):
            found = read(self._added.catalog, rows[brought] - base)
            if isinstance(values, np.ndarray):
                values[brought] = found
            else:
                for at, value in zip(brought.tolist(), found, strict=True):
                    values[at] = value
        return values

    def _row_of(self, item_indexes: NDArray[np.integer]) -> NDArray[np.integer]:
        return item_indexes if self._rows is None else self._rows.row_of(item_indexes)

    def _live(self, tags: TagFilter | None) -> _Live:
        if tags is None:
            return self._everything
        key = FilterKey.of(tags)
        if key == FilterKey():
            return self._everything
        with self._lock:
            live = self._filtered.pop(key, None) or self._count(key)
            self._filtered[key] = live
            if len(self._filtered) > self._filters:
                self._filtered.popitem(last=False)
        return live

    def _count(self, key: FilterKey) -> _Live:
        live = self._base.placed.live(key)
        if len(self._overlay.withdrawn):
            live[torch.tensor(self._overlay.withdrawn, dtype=torch.int64, device=self.device)] = False
        if self._added is not None:
            live = torch.cat([live, self._added.placed.live(key)])
        if self._rows is not None:
            live = live[self._rows.row_of_item]
        counts = torch.zeros(len(live) + 1, dtype=torch.int32, device=self.device)
        torch.cumsum(live, 0, dtype=torch.int32, out=counts[1:])
        # reading the total also waits for the counts: who reads them does so on a stream of its own
        return _Live(counts, int(counts[-1]))

    def _all_sids(self) -> Tensor:
        sids = [source.placed.sids() for source in (self._base, self._added) if source is not None]
        return torch.cat(sids, dim=1) if len(sids) > 1 else sids[0]


def device_bytes(catalog: Catalog) -> int:
    """Bytes that a catalog needs on its device while it is staged, at most."""
    tags = catalog.tags.bits.nbytes + catalog.tags.items_flat.nbytes
    return catalog.sids.nbytes + catalog.items + tags + changed_bytes(catalog.items, catalog.sizes)


def changed_bytes(items: int, sizes: Sequence[int]) -> int:
    """Bytes that a version of so many items needs beside its base while it is staged, at most: trie, counts, codes."""
    return trie_bytes(items, sizes) + 4 * items * (8 + 2 * len(sizes))


def trie_bytes(items: int, sizes: Sequence[int]) -> int:
    """Bytes of the largest trie that so many items can make."""
    nodes, total = 1, 2 * 4
    for size in sizes:
        total += 4 * (nodes + 1)
        nodes = min(nodes * size, items)
        total += 4 * nodes + 4 * (nodes + 1)
    return total


def host_bytes(catalog: Catalog) -> int:
    """Bytes that the host side of a resident catalog adds to the catalog itself: the id index."""
    return catalog.items * (12 + 16)


def _values(column: pa.Array, rows: NDArray[np.integer]) -> list[Any]:
    values: list[Any] = column.take(pa.array(rows)).to_pylist()
    return values
