"""Where the items of a version made by deltas come from: rows of its base and rows that were added."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.catalog.ferry import download

IntArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowMap:
    """Item indexes to rows and back.

    A row below ``base`` is an item of the base, a row from ``base`` on is one of the added items; both in leaf order.

    - ``row_of_item``: int32 ``[items]`` on the device
    - ``rows``: the same on the host; ``indexes``: int32 ``[base + added + 1]``, the item index of every row, -1 of one
      that was removed, and -1 at the end. A search in the changes would take little memory, but milliseconds for a
      long history; these take eight bytes an item and microseconds.
    """

    base: int
    row_of_item: Tensor
    rows: IntArray
    indexes: IntArray

    @classmethod
    def of(cls, base: int, before: IntArray, removed: IntArray, device: torch.device) -> Self:
        """``before``: how many rows of the base come before each added item, ascending; ``removed``: ascending."""
        gone = np.searchsorted(removed, before)
        at = _index(before - gone + np.arange(len(before)), device)
        items = base - len(removed) + len(before)
        kept = torch.ones(base, dtype=torch.bool, device=device)
        kept[_index(removed, device)] = False
        from_base = torch.ones(items, dtype=torch.bool, device=device)
        from_base[at] = False
        rows = torch.empty(items, dtype=torch.int32, device=device)
        rows[from_base] = kept.nonzero().squeeze(1).int()
        rows[at] = torch.arange(base, base + len(at), dtype=torch.int32, device=device)
        indexes = torch.full((base + len(before) + 1,), -1, dtype=torch.int32, device=device)
        indexes[rows.long()] = torch.arange(items, dtype=torch.int32, device=device)
        return cls(base, rows, download(rows), download(indexes))

    @property
    def items(self) -> int:
        return len(self.rows)

    def index_of(self, rows: NDArray[np.integer]) -> IntArray:
        """Item index of each row, int32 ``[n]``; -1 for -1 and for a removed row."""
        return self.indexes.take(rows)  # -1 takes the last one

    def row_of(self, items: NDArray[np.integer]) -> IntArray:
        """Row of each item index, int32 ``[n]``."""
        return self.rows.take(items)


def _index(numbers: NDArray[np.integer], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
