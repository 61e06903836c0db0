"""A catalog version on the device."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.catalog.catalog import Catalog
from engine.catalog.filters import FilterKey, live_items
from engine.catalog.lookup import IdIndex
from engine.errors import RequestError
from engine.request import ItemIds, TagFilter

FILTERS_KEPT = 16


@dataclass(frozen=True, slots=True)
class _Live:
    passes: NDArray[np.bool_]
    counts: Tensor
    total: int


class ResidentCatalog:
    """An immutable catalog whose trie lies on ``device``; item ids, codes and fields stay on the host.

    - ``code``, ``child_begin``, ``item_begin``: the arrays of ``Trie`` as int32 tensors on the device
    - running counts of live items are kept on the device for the ``filters`` least recently used filters

    Safe to use from several threads.
    """

    def __init__(self, catalog: Catalog, device: torch.device, filters: int = FILTERS_KEPT) -> None:
        trie = catalog.trie
        self.catalog = catalog
        self.device = device
        self.version = catalog.version
        self.levels = trie.levels
        self.code = tuple(_upload(array, device) for array in trie.code)
        self.child_begin = tuple(_upload(array, device) for array in trie.child_begin)
        self.item_begin = tuple(_upload(array, device) for array in trie.item_begin)
        self._codes = _item_codes(catalog)
        self._ids = IdIndex(catalog.ids)
        self._lock = Lock()
        self._filters = filters
        self._everything = self._count(FilterKey())
        self._filtered: OrderedDict[FilterKey, _Live] = OrderedDict()

    @property
    def items(self) -> int:
        return self.catalog.trie.items

    def lookup(self, ids: ItemIds) -> NDArray[np.int32]:
        """Item index of each id, -1 if unknown, int32 ``[n]``. The wrong kind of id: RequestError ``bad_request``."""
        return self._ids.find(ids)

    def codes_of(self, item_indexes: NDArray[np.integer]) -> NDArray[np.int32]:
        """SID codes of items (indexes in ``0 .. items - 1``), int32 ``[n, levels]``."""
        return self._codes.take(item_indexes, axis=0).astype(np.int32)

    def ids_of(self, item_indexes: NDArray[np.integer]) -> ItemIds:
        """Item ids, int64 ``[n]`` or a list of strings."""
        ids = self.catalog.ids
        if isinstance(ids, np.ndarray):
            return ids.take(item_indexes)
        strings: list[str] = ids.take(pa.array(item_indexes)).to_pylist()
        return strings

    def fields_of(self, names: Sequence[str], item_indexes: NDArray[np.integer]) -> Mapping[str, list[object]]:
        """Item fields, ``n`` values each. Raises RequestError ``bad_request`` for a field that the catalog lacks."""
        unknown = [name for name in names if name not in self.catalog.fields]
        if unknown:
            raise RequestError("bad_request", f"the catalog has no field {unknown[0]!r}")
        rows = pa.array(item_indexes)
        return {name: self.catalog.fields[name].take(rows).to_pylist() for name in names}

    def live_counts(self, tags: TagFilter | None = None) -> Tensor:
        """Running counts of live items, int32 ``[items + 1]`` on the device; items ``i .. j - 1``: ``[j] - [i]``."""
        return self._live(tags).counts

    def live_total(self, tags: TagFilter | None = None) -> int:
        """Live items under a filter, without a device synchronisation."""
        return self._live(tags).total

    def passes(self, item_indexes: NDArray[np.integer], tags: TagFilter | None = None) -> NDArray[np.bool_]:
        """Which of the items may be recalled under a filter, bool ``[n]``, on the host."""
        return self._live(tags).passes.take(item_indexes)

    def _live(self, tags: TagFilter | None) -> _Live:
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
        live = live_items(self.catalog, key)
        counts = torch.zeros(len(live) + 1, dtype=torch.int32, device=self.device)
        torch.cumsum(torch.from_numpy(live).to(self.device), 0, dtype=torch.int32, out=counts[1:])
        if self.device.type == "cuda":  # who reads it does so on a stream of its own
            torch.cuda.current_stream(self.device).synchronize()
        return _Live(live, counts, int(np.count_nonzero(live)))


def device_bytes(catalog: Catalog) -> int:
    """Bytes that a catalog needs on its device: the trie, the unfiltered counts and those of one filter."""
    trie = catalog.trie
    arrays = (*trie.code, *trie.child_begin, *trie.item_begin)
    return sum(array.nbytes for array in arrays) + 2 * 4 * (trie.items + 1)


def host_bytes(catalog: Catalog) -> int:
    """Bytes that the host side of a resident catalog adds to the catalog itself: SID codes, the id index, a filter."""
    width = 2 if max(catalog.trie.sizes) <= 1 << 16 else 4
    return catalog.trie.items * (catalog.trie.levels * width + 12 + 16 + 2)


def _upload(array: NDArray[np.int32], device: torch.device) -> Tensor:
    # a copy in any case: the host array may be a read-only view of a file's bytes
    return torch.tensor(array, dtype=torch.int32, device=device)


def _item_codes(catalog: Catalog) -> NDArray[np.integer]:
    """SID codes by item, ``[items, levels]``, as narrow as the codebooks allow."""
    trie = catalog.trie
    codes = np.empty((trie.items, trie.levels), dtype=np.uint16 if max(trie.sizes) <= 1 << 16 else np.int32)
    for level in range(trie.levels):
        codes[:, level] = np.repeat(trie.code[level], np.diff(trie.item_begin[level + 1]))
    return codes
