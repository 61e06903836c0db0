"""Structural checks of a catalog that came from untrusted bytes."""

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from catalog_sync.columns import check_begins
from engine.catalog.catalog import Catalog, Ids, joined_ids, same_as_before
from engine.catalog.delta import Delta
from engine.catalog.tags import TagIndex
from engine.catalog.texts import all_distinct
from engine.errors import CatalogError


def verify_structure(catalog: Catalog) -> None:
    """What the engine takes for granted, but for the lengths of item columns; raises CatalogError ``structure``."""
    if catalog.rank is not None and np.isnan(catalog.rank).any():
        raise CatalogError("structure", "a rank is not a number")
    if catalog.items:
        _verify_codes(catalog)
        _verify_order(catalog)
    _verify_unique(catalog.ids)
    _verify_tags(catalog.tags)


def verify_delta(delta: Delta) -> None:
    """That no id stands twice in a delta; raises CatalogError ``structure``."""
    _verify_unique(joined_ids(delta.upserts.ids, delta.withdrawn))


def _verify_codes(catalog: Catalog) -> None:
    for level, size in enumerate(catalog.sizes):
        codes = catalog.sids[:, level]
        if int(codes.min()) < 0 or int(codes.max()) >= size:
            raise CatalogError("structure", f"level {level}: a code outside 0 to {size - 1}")


def _verify_order(catalog: Catalog) -> None:
    """By SID, then rank, then id."""
    sids = catalog.sids
    falls = np.zeros(len(sids) - 1, dtype=np.bool_)
    for level in reversed(range(sids.shape[1])):
        before, after = sids[:-1, level], sids[1:, level]
        falls &= before == after
        falls |= before > after
    if falls.any():
        raise CatalogError("structure", f"items {falls.argmax()} and after: SIDs do not stand in order")
    left = np.flatnonzero(same_as_before(sids))
    right = left + 1
    if isinstance(catalog.ids, np.ndarray):
        rises = catalog.ids[left] < catalog.ids[right]
    else:
        rises = pc.less(catalog.ids.take(left), catalog.ids.take(right)).to_numpy(zero_copy_only=False)
    lower, higher = catalog.ranks(left), catalog.ranks(right)
    if not ((lower < higher) | ((lower == higher) & rises)).all():
        raise CatalogError("structure", "the items of one SID do not stand in order")


def _verify_unique(ids: Ids) -> None:
    if isinstance(ids, np.ndarray):
        ordered = np.sort(ids)
        unique = not (ordered[1:] == ordered[:-1]).any()
    else:
        unique = all_distinct(ids)
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
    _verify_bitmaps(tags)


def _verify_bitmaps(tags: TagIndex) -> None:
    dense = tags.dense
    if not len(dense):
        return
    if int(dense.min()) < 0 or int(dense.max()) >= len(tags.names) or (np.diff(dense) <= 0).any():
        raise CatalogError("structure", "tags/dense: the tags with a bitmap do not rise")
    if (tags.begin[dense] != tags.begin[dense + 1]).any():
        raise CatalogError("structure", "a tag has a bitmap and a list of items")
    if tags.size % 8 and (tags.bits[:, -1] >> np.uint8(tags.size % 8)).any():
        raise CatalogError("structure", "a bitmap names an item that is not there")
