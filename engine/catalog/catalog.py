"""One immutable catalog version on the host."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.catalog.tags import TagIndex
from engine.catalog.trie import Trie

Ids: TypeAlias = NDArray[np.int64] | pa.Array
"""Item ids: int64 ``[items]``, or a pyarrow string array."""


@dataclass(frozen=True)
class Catalog:
    """A catalog version. Items stand in leaf order; inside a leaf by (``rank``, item id).

    - ``version``: name derived from the content; ``model``: the ``id`` of the model's ``sid.json``
    - ``sizes``: codebook size of each level
    - ``sids``: ``[items, levels]``, of ``sid_dtype(sizes)``
    - ``ids``: int64 ``[items]``, or a pyarrow string array
    - ``recallable``: bool ``[items]``; a false item keeps its SID (histories still resolve) and is never recalled
    - ``rank``: float64 ``[items]``, or None where no item has one
    - ``tags``: which items hold a tag
    - ``fields``: item columns returned on ``return_fields``, each a pyarrow array ``[items]``
    """

    version: str
    model: str
    sizes: tuple[int, ...]
    sids: NDArray[np.integer]
    ids: Ids
    recallable: NDArray[np.bool_]
    rank: NDArray[np.float64] | None
    tags: TagIndex
    fields: Mapping[str, pa.Array]

    @property
    def items(self) -> int:
        return len(self.sids)

    @cached_property
    def leaves(self) -> int:
        """Distinct SIDs."""
        if not self.items:
            return 0
        return self.items - int(np.count_nonzero(same_as_before(self.sids)))

    def leaf_sizes(self) -> NDArray[np.int64]:
        """Items of each leaf."""
        return np.diff(np.flatnonzero(np.concatenate([[True], ~same_as_before(self.sids), [True]])))

    @cached_property
    def trie(self) -> Trie:
        """The trie on the host, made when it is asked for; what serves is made on the device."""
        return Trie.of(self.sids, self.sizes)

    def ranks(self, rows: NDArray[np.integer] | None = None) -> NDArray[np.float64]:
        """Rank of some items or of all; an item without one comes last in its SID."""
        if self.rank is None:
            return np.full(self.items if rows is None else len(rows), np.inf)
        return self.rank if rows is None else self.rank.take(rows)

    def take(self, rows: NDArray[np.integer], version: str = "") -> "Catalog":
        """The items ``rows`` (distinct) in that order, which must be leaf order."""
        picked = pa.array(rows)
        return Catalog(
            version,
            self.model,
            self.sizes,
            sids=self.sids.take(rows, axis=0),
            ids=self.ids.take(rows if isinstance(self.ids, np.ndarray) else picked),
            recallable=self.recallable.take(rows),
            rank=None if self.rank is None else _rank_or_none(self.rank.take(rows)),
            tags=self.tags.take(rows),
            fields={name: column.take(picked) for name, column in self.fields.items()},
        )

    def joined(self, other: "Catalog") -> "Catalog":
        """The items of both, one after the other: not in leaf order. A field that one of them lacks is null there."""
        fields = self.fields if self.fields.keys() >= other.fields.keys() else {**other.fields, **self.fields}
        return Catalog(
            "",
            self.model,
            self.sizes,
            sids=np.concatenate([self.sids, other.sids]),
            ids=joined_ids(self.ids, other.ids),
            recallable=np.concatenate([self.recallable, other.recallable]),
            rank=None if self.rank is other.rank is None else np.concatenate([self.ranks(), other.ranks()]),
            tags=self.tags.joined(other.tags),
            fields={
                name: pa.concat_arrays([_field(self, name, column.type), _field(other, name, column.type)])
                for name, column in fields.items()
            },
        )


def sid_dtype(sizes: tuple[int, ...]) -> type[np.integer]:
    """As narrow as the codebooks allow."""
    return np.uint16 if max(sizes) <= 1 << 16 else np.int32


def same_as_before(sids: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which of ``sids[1:]`` equal the one before, bool ``[items - 1]``."""
    same = np.ones(len(sids) - 1, dtype=np.bool_)
    for level in range(sids.shape[1]):
        same &= sids[1:, level] == sids[:-1, level]
    return same


def joined_ids(left: Ids, right: Ids) -> Ids:
    if isinstance(left, np.ndarray):
        return np.concatenate([left, right])
    return pa.concat_arrays([left, right])


def _rank_or_none(rank: NDArray[np.float64]) -> NDArray[np.float64] | None:
    return rank if (rank < np.inf).any() else None


def _field(catalog: Catalog, name: str, kind: pa.DataType) -> pa.Array:
    column = catalog.fields.get(name)
    return pa.nulls(catalog.items, kind) if column is None else column
