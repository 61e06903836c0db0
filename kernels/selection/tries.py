"""What selection reads of the catalogs of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

NO_ITEM = torch.iinfo(torch.int32).max
"""Pads the sorted exclusions of a request; larger than every item index."""


@dataclass(frozen=True, slots=True)
class LevelTries:
    """One trie level for each of ``R`` requests. Requests may share tensors; each may have its own catalog and filter.

    Per request, all int32 on the batch's device:

    - ``child_begin``: ``[nodes + 1]``, first child of each node of the level
    - ``code``: ``[children]``, code of the edge into each child
    - ``item_begin``: ``[children + 1]``, first item below each child
    - ``live``: ``[items + 1]``, running count of the items that are recallable and pass the request's filter

    ``address``: int64 ``[4, R]``, the device addresses of these four, which is what a device kernel reads.
    """

    child_begin: tuple[Tensor, ...]
    code: tuple[Tensor, ...]
    item_begin: tuple[Tensor, ...]
    live: tuple[Tensor, ...]
    address: Tensor

    @classmethod
    def of(
        cls, child_begin: Sequence[Tensor], code: Sequence[Tensor], item_begin: Sequence[Tensor], live: Sequence[Tensor]
    ) -> Self:
        """Bundle one tensor per request each."""
        columns = tuple(child_begin), tuple(code), tuple(item_begin), tuple(live)
        address = torch.tensor([[tensor.data_ptr() for tensor in column] for column in columns], dtype=torch.int64)
        return cls(*columns, address.to(live[0].device, non_blocking=True))


def live_below(begin: Tensor, end: Tensor, live: Tensor, excluded: Tensor) -> Tensor:
    """Items from ``begin`` to before ``end`` (int32) that count in ``live`` and are not in ``excluded`` (sorted)."""
    passed = live[end.long()] - live[begin.long()]
    taken_out = torch.searchsorted(excluded, end, out_int32=True) - torch.searchsorted(excluded, begin, out_int32=True)
    return passed - taken_out
