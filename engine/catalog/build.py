"""Build a trie and a catalog from item arrays, vectorised."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.catalog.catalog import Catalog
from engine.catalog.tags import TagIndex
from engine.catalog.trie import Trie
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


def build_trie(sids: NDArray[np.int32], sizes: Sequence[int]) -> tuple[Trie, NDArray[np.intp]]:
    """The trie over ``sids`` int32 ``[items, levels]`` and the stable order that puts items in leaf order.

    Raises CatalogError: ``empty``, ``structure`` (shape), ``range`` (a code outside its codebook).
    """
    sizes = check_sizes(sizes)
    check_sids(sids, sizes, row_name)
    order = _sid_order(sids, sizes)
    ordered = sids[order]
    items = len(sids)

    code, child_begin, item_begin = [], [], [np.array([0, items], dtype=np.int32)]
    first = np.zeros(items, dtype=np.bool_)  # the item is the first below its node
    first[0] = True
    starts = np.zeros(1, dtype=np.intp)
    for level in range(len(sizes)):
        first[1:] |= ordered[1:, level] != ordered[:-1, level]
        node_of_item = np.cumsum(first, dtype=np.int32) - 1
        child_begin.append(np.append(node_of_item[starts], node_of_item[-1] + 1).astype(np.int32))
        starts = np.flatnonzero(first)
        code.append(np.ascontiguousarray(ordered[starts, level], dtype=np.int32))
        item_begin.append(np.append(starts, items).astype(np.int32))
    return Trie(sizes, tuple(code), tuple(child_begin), tuple(item_begin)), order


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
    _check_unique(id_array, name)
    if rank is not None and np.isnan(rank).any():
        raise CatalogError("rank", f"{name(int(np.isnan(rank).argmax()))}: rank is not a number")

    trie, order = build_trie(sids, sizes)
    order = _order_in_leaves(order, trie.item_begin[-1], id_array, rank)
    index = TagIndex.of(tags or {}, items)
    return Catalog(
        version=version,
        model=model,
        trie=trie,
        ids=id_array.take(order),
        recallable=np.ones(items, np.bool_) if recallable is None else recallable.astype(np.bool_)[order],
        tags=index.reordered(order),
        fields={key: column.take(pa.array(order)) for key, column in (fields or {}).items()},
    )


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


def _sid_order(sids: NDArray[np.int32], sizes: tuple[int, ...]) -> NDArray[np.intp]:
    """Stable lexicographic order; codes are packed into as few 63-bit words as they need."""
    words: list[NDArray[np.int64]] = []
    room = 0
    for level, size in enumerate(sizes):
        bits = max(1, int(size - 1).bit_length())
        if bits > room:
            words.append(np.zeros(len(sids), dtype=np.int64))
            room = 63
        words[-1] = (words[-1] << bits) | sids[:, level]
        room -= bits
    return np.argsort(words[0], kind="stable") if len(words) == 1 else np.lexsort(words[::-1])


def _order_in_leaves(
    order: NDArray[np.intp],
    leaf_begin: NDArray[np.int32],
    ids: NDArray[np.int64] | pa.Array,
    rank: NDArray[np.float64] | None,
) -> NDArray[np.intp]:
    """Arrange the items of each leaf by (rank, item id); only leaves that hold several are touched."""
    count = np.diff(leaf_begin)
    leaf = np.repeat(np.arange(len(count), dtype=np.int32), count)
    shared = np.flatnonzero((count > 1)[leaf])
    if len(shared) == 0:
        return order
    members = order[shared]
    by_id = ids.take(members)
    id_key = by_id if isinstance(by_id, np.ndarray) else pc.rank(by_id, tiebreaker="dense").to_numpy()
    keys = [id_key, leaf[shared]] if rank is None else [id_key, rank[members], leaf[shared]]
    arranged = order.copy()
    arranged[shared] = members[np.lexsort(keys)]
    return arranged


def _id_array(ids: ItemIds | pa.Array) -> NDArray[np.int64] | pa.Array:
    if isinstance(ids, np.ndarray):
        if ids.dtype != np.int64:
            raise CatalogError("structure", f"item ids are int64 or strings, not {ids.dtype}")
        return ids
    array = ids if isinstance(ids, pa.Array) else pa.array(ids, pa.string())
    if array.type != pa.string() or array.null_count:
        raise CatalogError("structure", "item ids are int64 or strings, without nulls")
    return array


def _check_unique(ids: NDArray[np.int64] | pa.Array, name: Callable[[int], str]) -> None:
    if isinstance(ids, np.ndarray):
        keys = ids
        if not (np.diff(np.sort(keys)) == 0).any():
            return
    else:
        encoded = ids.dictionary_encode()
        if len(encoded.dictionary) == len(ids):
            return
        keys = encoded.indices.to_numpy()
    order = np.argsort(keys, kind="stable")
    repeats = order[1:][keys[order][1:] == keys[order][:-1]]
    second = int(repeats.min())
    first = int((keys == keys[second]).argmax())
    raise CatalogError("duplicate", f"{name(second)}: item id {ids[second]} is already on {name(first)}")
