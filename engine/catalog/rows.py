"""Where the items of a version made by deltas come from: rows of its base and rows that were added."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowMap:
    """Item indexes to rows and back, in time for the items asked and the logarithm of the changes.

    A row below ``base`` is an item of the base, a row from ``base`` on is one of the added items; both in leaf order.

    - ``before``: int32 ``[added]``, ascending: how many rows of the base come before each added item
    - ``removed``: int32, ascending: rows of the base that an added item replaces
    - ``at``: int32 ``[added]``, item index of each added item
    """

    base: int
    before: IntArray
    removed: IntArray
    at: IntArray = field(init=False)
    _kept_before: IntArray = field(init=False)

    def __post_init__(self) -> None:
        gone = np.searchsorted(self.removed, self.before)
        at = self.before - gone + np.arange(len(self.before))
        kept_before = self.removed - np.arange(len(self.removed))
        object.__setattr__(self, "at", at.astype(np.int32))
        object.__setattr__(self, "_kept_before", kept_before.astype(np.int32))

    @classmethod
    def unchanged(cls, items: int) -> "RowMap":
        return cls(items, np.empty(0, np.int32), np.empty(0, np.int32))

    @property
    def items(self) -> int:
        return self.base - len(self.removed) + len(self.before)

    def index_of(self, rows: IntArray) -> IntArray:
        """Item index of each row, int32 ``[n]``; -1 for -1. A removed row has none and must not be asked for."""
        index = rows.astype(np.int32)
        if len(self.removed):
            index -= np.searchsorted(self.removed, rows).astype(np.int32)
        if len(self.before):
            index += np.searchsorted(self.before, rows, side="right").astype(np.int32)
            added = np.flatnonzero(rows >= self.base)
            index[added] = self.at[rows[added] - self.base]
        return index

    def row_of(self, items: NDArray[np.integer]) -> IntArray:
        """Row of each item index, int32 ``[n]``."""
        rows = items.astype(np.int32)
        if len(self.at):
            rows -= np.searchsorted(self.at, items, side="right").astype(np.int32)
        if len(self.removed):
            rows += np.searchsorted(self._kept_before, rows, side="right").astype(np.int32)
        if len(self.at):
            place = np.searchsorted(self.at, items)
            added = np.flatnonzero(self.at.take(place, mode="clip") == items)
            rows[added] = self.base + place[added]
        return rows

    def rows(self, device: torch.device) -> Tensor:
        """Row of every item, int32 ``[items]``, on ``device``."""
        rows = torch.empty(self.items, dtype=torch.int32, device=device)
        kept = torch.ones(self.base, dtype=torch.bool, device=device)
        kept[_index(self.removed, device)] = False
        at = _index(self.at, device)
        from_base = torch.ones(self.items, dtype=torch.bool, device=device)
        from_base[at] = False
        rows[from_base] = kept.nonzero().squeeze(1).int()
        rows[at] = torch.arange(self.base, self.base + len(at), dtype=torch.int32, device=device)
        return rows


def _index(numbers: IntArray, device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
