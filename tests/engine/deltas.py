"""Chains of deltas for tests, and the plain table that each of them makes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from engine.catalog.catalog import Catalog, Ids
from engine.catalog.delta import Delta
from tests.engine.catalogs import TAGS, Item, catalog_of, item_tables

ItemId = int | str


@dataclass(frozen=True)
class Change:
    """One delta as plain records."""

    upserts: tuple[Item, ...]
    withdrawn: tuple[ItemId, ...]

    def applied(self, items: Sequence[Item]) -> list[Item]:
        """The table after it."""
        table = {item.id: item for item in items} | {item.id: item for item in self.upserts}
        for item_id in self.withdrawn:
            if item_id in table:
                table[item_id] = replace(table[item_id], recallable=False)
        return list(table.values())


def delta_of(change: Change, base: Catalog, parent: str, version: str) -> Delta:
    """The delta of a change over a catalog built with ``catalog_of``."""
    none = base.take(np.empty(0, np.int32))
    upserts = replace(catalog_of(change.upserts, base.sizes), version="") if change.upserts else none
    return Delta(version, parent, upserts, ids_like(base.ids, change.withdrawn))


def ids_like(ids: Ids, wanted: Sequence[ItemId]) -> Ids:
    if isinstance(ids, np.ndarray):
        return np.array(wanted, dtype=np.int64)
    return pa.array([str(item_id) for item_id in wanted], pa.string())


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Item], list[Change]]:
    """Codebook sizes, the items of a base, and changes that follow each other."""
    sizes, items = draw(item_tables())
    number = isinstance(items[0].id, int)
    fresh: st.SearchStrategy[ItemId] = st.integers(-9, 9) if number else st.text(max_size=12)
    ids: st.SearchStrategy[ItemId] = st.one_of(st.sampled_from([item.id for item in items]), fresh)
    code = [st.sampled_from(sorted({0, size // 2, size - 1})) for size in sizes]
    item = st.builds(
        Item,
        id=ids,
        sid=st.tuples(*code),
        rank=st.sampled_from([-1.0, 0.0, 0.5, float("inf")]),
        recallable=st.booleans(),
        tags=st.frozensets(st.sampled_from([*TAGS, "new"])),
    )
    changes = []
    for _ in range(draw(st.integers(1, 4))):
        upserts = draw(st.lists(item, max_size=5, unique_by=lambda each: each.id))
        taken = {each.id for each in upserts}
        withdrawn = draw(st.lists(ids.filter(lambda i: i not in taken), max_size=4, unique=True))  # noqa: B023
        changes.append(Change(tuple(upserts), tuple(withdrawn)))
    return sizes, items, changes
