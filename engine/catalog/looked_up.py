"""Items that were looked up before: of a history that has grown only the new ones are looked for."""

from dataclasses import dataclass
from typing import Self
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from engine.catalog.resident import ResidentCatalog
from engine.request import ItemIds


@dataclass(frozen=True, slots=True)
class LookedUp:
    """``rows``: index of each of ``ids`` in ``catalog``, -1 if unknown, int32 ``[n]``. It does not keep the catalog."""

    catalog: ref[ResidentCatalog]
    ids: ItemIds
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, ids: ItemIds, catalog: ResidentCatalog, before: "LookedUp | None" = None) -> Self:
        """As ``catalog.lookup``. ``before``: perhaps of a history that begins alike."""
        kept: ItemIds = ids.copy() if isinstance(ids, np.ndarray) else list(ids)  # the caller's may change
        known = 0
        if before is not None and before.catalog() is catalog:
            both = min(len(before.ids), len(kept))
            known = both if _same(before.ids[:both], kept[:both]) else 0
        rows = catalog.lookup(kept[known:])
        if before is not None and known:
            rows = np.concatenate([before.rows[:known], rows])
        return cls(ref(catalog), kept, rows)


def _same(one: ItemIds, other: ItemIds) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other
