"""Structural checks of a catalog that came from untrusted bytes."""

import numpy as np
from numpy.typing import NDArray

from catalog_sync.columns import check_begins
from engine.catalog.catalog import Catalog
from engine.catalog.tags import TagIndex
from engine.catalog.trie import Trie
from engine.errors import CatalogError


def verify_structure(catalog: Catalog) -> None:
    """What the engine takes for granted, but for the lengths of item columns; raises CatalogError ``structure``."""
    _verify_trie(catalog.trie, len(catalog.recallable))
    _verify_ids(catalog)
    if isinstance(catalog.tags, TagIndex):
        _verify_tags(catalog.tags)


def _verify_trie(trie: Trie, items: int) -> None:
    nodes = [1] + [len(code) for code in trie.code]
    for level, (code, size) in enumerate(zip(trie.code, trie.sizes, strict=True)):
        begins = trie.child_begin[level]
        if len(code) == 0 or len(begins) != nodes[level] + 1 or len(trie.item_begin[level]) != nodes[level] + 1:
            raise CatalogError("structure", f"level {level}: arrays of {nodes[level]} nodes have other lengths")
        check_begins(f"child_begin/{level}", begins, nodes[level + 1], strict=True)
        if int(code.min()) < 0 or int(code.max()) >= size:
            raise CatalogError("structure", f"code/{level}: a code outside 0 to {size - 1}")
        falls = np.diff(code) <= 0
        falls[begins[1:-1] - 1] = False  # the next node's first child
        if falls.any():
            raise CatalogError("structure", f"code/{level}: codes below one node do not rise")
    leaf_begin = trie.item_begin[-1]
    if len(leaf_begin) != nodes[-1] + 1:
        raise CatalogError("structure", f"{nodes[-1]} leaves have {len(leaf_begin)} item begins")
    check_begins("item_begin", leaf_begin, items, strict=True)
    for level in reversed(range(trie.levels)):
        if not np.array_equal(trie.item_begin[level], trie.item_begin[level + 1][trie.child_begin[level]]):
            raise CatalogError("structure", f"item_begin/{level} does not agree with the level below")


def _verify_ids(catalog: Catalog) -> None:
    ids = catalog.ids
    if isinstance(ids, np.ndarray):
        unique = not (np.diff(np.sort(ids)) == 0).any()
    else:
        unique = len(ids.dictionary_encode().dictionary) == len(ids)
    if not unique:
        raise CatalogError("structure", "an item id stands twice")


def _verify_tags(tags: TagIndex) -> None:
    if any(left >= right for left, right in zip(tags.names, tags.names[1:], strict=False)):
        raise CatalogError("structure", "tag names do not rise")
    check_begins("tags/begin", tags.begin, len(tags.items_flat))
    held: NDArray[np.int32] = tags.items_flat
    if len(held) and (int(held.min()) < 0 or int(held.max()) >= tags.size):
        raise CatalogError("structure", "a tag names an item that is not there")
    falls = np.diff(held) <= 0
    inner = tags.begin[1:-1]
    falls[inner[(inner > 0) & (inner < len(held))] - 1] = False  # the next tag's first item
    if falls.any():
        raise CatalogError("structure", "the items of one tag do not rise")
