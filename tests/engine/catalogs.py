"""Catalogs for tests: strategies and a plain model of what they mean."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.request import TagFilter

TAGS = ("a", "b", "c")


@dataclass(frozen=True)
class Item:
    """One item as a plain record."""

    id: int | str
    sid: tuple[int, ...]
    rank: float = 0.0
    recallable: bool = True
    tags: frozenset[str] = frozenset()

    def passes(self, tags: TagFilter) -> bool:
        return (
            self.recallable
            and (not tags.any or bool(self.tags & set(tags.any)))
            and self.tags >= set(tags.all)
            and not self.tags & set(tags.none)
        )


def catalog_of(items: Sequence[Item], sizes: Sequence[int], *, version: str = "v1", model: str = "m") -> Catalog:
    """Build the catalog of plain records; the item's id as text is kept as the field ``title``."""
    held = sorted({tag for item in items for tag in item.tags})
    ids = [item.id for item in items]
    return build_catalog(
        version=version,
        model=model,
        sizes=sizes,
        ids=np.array(ids, dtype=np.int64) if isinstance(ids[0], int) else [str(i) for i in ids],
        sids=np.array([item.sid for item in items], dtype=np.int32),
        recallable=np.array([item.recallable for item in items]),
        rank=np.array([item.rank for item in items]),
        tags={tag: np.array([tag in item.tags for item in items]) for tag in held},
        fields={"title": pa.array([f"title of {item.id}" for item in items])},
    )


def leaf_order(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda item: (item.sid, item.rank, item.id))


@st.composite
def item_tables(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Item]]:
    """Codebook sizes (1 to 8 levels, up to 2^20 codes, few of them used) and items with shared SIDs."""
    levels = draw(st.integers(1, 8))
    sizes = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 256, 1 << 20]), min_size=levels, max_size=levels)))
    code = [st.sampled_from(sorted({0, size // 2, size - 1})) for size in sizes]
    ids = draw(
        st.one_of(
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30, unique=True),
            st.lists(st.text(max_size=5), min_size=1, max_size=30, unique=True),
        )
    )
    items = [
        Item(
            id=item_id,
            sid=draw(st.tuples(*code)),
            rank=draw(st.sampled_from([-1.0, 0.0, 0.5, float("inf")])),
            recallable=draw(st.booleans()),
            tags=draw(st.frozensets(st.sampled_from(TAGS))),
        )
        for item_id in ids
    ]
    return sizes, items


def tag_filters() -> st.SearchStrategy[TagFilter]:
    names = st.lists(st.sampled_from([*TAGS, "absent"]), max_size=2).map(tuple)
    return st.builds(TagFilter, any=names, all=names, none=names)
