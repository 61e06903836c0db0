"""Build a catalog from item arrays, vectorised."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.catalog.catalog import Catalog, Ids, same_as_before, sid_dtype
from engine.catalog.tags import TagIndex
from engine.catalog.texts import all_distinct
from engine.errors import CatalogError
from engine.request import ItemIds

MAX_LEVELS = 8
MAX_LEVEL_SIZE = 1 << 20
MAX_ITEMS = (1 << 31) - 2


def row_name(index: int) -> str:
    """How an error names an item: its 0-based position in the input."""
    return f"row {index}"


def check_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Codebook sizes as a tuple, or CatalogError ``structure``."""
    if not 1 <= len(sizes) <= MAX_LEVELS:
        raise CatalogError("structure", f"a catalog has 1 to {MAX_LEVELS} levels, not {len(sizes)}")
    for level, size in enumerate(sizes):
        if not 1 <= size <= MAX_LEVEL_SIZE:
            raise CatalogError("structure", f"level {level}: size {size} is not in 1 to {MAX_LEVEL_SIZE}")
    return tuple(int(size) for size in sizes)


def build_catalog(
    *,
    version: str,
    model: str,
    sizes: Sequence[int],
    ids: ItemIds | pa.Array,
    sids: NDArray[np.int32],
    recallable: NDArray[np.bool_] | None = None,
    rank: NDArray[np.float64] | None = None,
    tags: Mapping[str, NDArray[np.bool_]] | None = None,
    fields: Mapping[str, pa.Array] | None = None,
    name: Callable[[int], str] = row_name,
) -> Catalog:
    """A catalog from per-item arrays in any order.

    ``ids`` int64 ``[items]`` or strings; ``sids`` int32 ``[items, levels]``; ``rank`` orders the items of one SID
    (lower first, then item id). ``name`` says how an error names an input position. Raises CatalogError: ``empty``,
    ``structure``, ``range``, ``duplicate``, ``rank``.
    """
    sizes = check_sizes(sizes)
    check_sids(sids, sizes, name)
    items = len(sids)
    id_array = _id_array(ids)
    for what, column in (("ids", id_array), ("recallable", recallable), ("rank", rank)):
        if column is not None and len(column) != items:
            raise CatalogError("structure", f"{what} has {len(column)} entries for {items} items")
    check_unique(id_array, name)
    if rank is not None and np.isnan(rank).any():
        raise CatalogError("rank", f"{name(int(np.isnan(rank).argmax()))}: rank is not a number")

    unordered = Catalog(
        "",
        model,
        sizes,
        sids=sids.astype(sid_dtype(sizes)),
        ids=id_array,
        recallable=np.ones(items, np.bool_) if recallable is None else recallable.astype(np.bool_),
        rank=None if rank is None else rank + 0.0,  # one kind of zero: equal catalogs have equal bytes
        tags=TagIndex.of(tags or {}, items),
        fields=fields or {},
    )
    return unordered.take(leaf_order(unordered), version)


def leaf_order(catalog: Catalog) -> NDArray[np.intp]:
    """The order that sorts items by SID, then rank, then id."""
    order = _sid_order(catalog.sids, catalog.sizes)
    same = same_as_before(catalog.sids.take(order, axis=0))
    shares = np.zeros(len(order), dtype=np.bool_)  # its leaf with the item before or after
    shares[1:] = same
    shares[:-1] |= same
    shared = np.flatnonzero(shares)
    if len(shared) == 0:
        return order
    members = order[shared]
    by_id = catalog.ids.take(members)
    id_key = by_id if isinstance(by_id, np.ndarray) else pc.rank(by_id, tiebreaker="dense").to_numpy()
    leaf = np.cumsum(~same)[shared - 1]
    leaf[shared == 0] = 0
    keys = [id_key, leaf] if catalog.rank is None else [id_key, catalog.rank[members], leaf]
    order[shared] = members[np.lexsort(keys)]
    return order


def check_sids(sids: NDArray[np.int32], sizes: tuple[int, ...], name: Callable[[int], str]) -> None:
    """Shape and ranges of ``sids`` int32 ``[items, levels]``."""
    if sids.ndim != 2 or sids.shape[1] != len(sizes):
        raise CatalogError("structure", f"SIDs of shape {sids.shape} for {len(sizes)} levels")
    if not 1 <= len(sids) <= MAX_ITEMS:
        raise CatalogError("empty" if len(sids) == 0 else "structure", f"a catalog of {len(sids)} items")
    for level, size in enumerate(sizes):
        column = sids[:, level]
        if column.min() < 0 or column.max() >= size:
            bad = int(((column < 0) | (column >= size)).argmax())
            raise CatalogError("range", f"{name(bad)}: code {column[bad]} at level {level} is not in 0 to {size - 1}")


def _sid_order(sids: NDArray[np.integer], sizes: tuple[int, ...]) -> NDArray[np.intp]:
    """Stable lexicographic order; codes are packed into as few 63-bit words as they need."""
    words: list[NDArray[np.int64]] = []
    room = 0
    for level, size in enumerate(sizes):
        bits = max(1, int(size - 1).bit_length())
        if bits > room:
            words.append(np.zeros(len(sids), dtype=np.int64))
            room = 63
        words[-1] <<= bits
        words[-1] |= sids[:, level]
        room -= bits
    if len(words) > 1:
        return np.lexsort(words[::-1])
    place_bits = int(len(sids) - 1).bit_length()
    if place_bits > room:
        return np.argsort(words[0], kind="stable")
    keys = words[0]  # with its place in it a key sorts by itself: several times faster than an argsort
    keys <<= place_bits
    keys |= np.arange(len(keys))
    keys.sort()
    keys &= (1 << place_bits) - 1
    return keys


def _id_array(ids: ItemIds | pa.Array) -> Ids:
    if isinstance(ids, np.ndarray):
        if ids.dtype != np.int64:
            raise CatalogError("structure", f"item ids are int64 or strings, not {ids.dtype}")
        return ids
    array = ids if isinstance(ids, pa.Array) else pa.array(ids, pa.string())
    if array.type != pa.string() or array.null_count:
        raise CatalogError("structure", "item ids are int64 or strings, without nulls")
    return array


def check_unique(ids: Ids, name: Callable[[int], str]) -> None:
    """Raises CatalogError ``duplicate`` that names both places."""
    if isinstance(ids, np.ndarray):
        keys = ids
        ordered = np.sort(keys)
        if not (ordered[1:] == ordered[:-1]).any():
            return
    else:
        if all_distinct(ids):
            return
        keys = ids.dictionary_encode().indices.to_numpy()
    order = np.argsort(keys, kind="stable")
    repeats = order[1:][keys[order][1:] == keys[order][:-1]]
    second = int(repeats.min())
    first = int((keys == keys[second]).argmax())
    raise CatalogError("duplicate", f"{name(second)}: item id {ids[second]} is already on {name(first)}")
