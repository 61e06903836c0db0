"""Excluded items in the form that selection reads."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.backend import NO_ITEM


def pack_exclusions(excluded: Sequence[NDArray[np.int32]], live: Sequence[Tensor]) -> Tensor:
    """Int32 ``[R, E]``, each row sorted and padded with ``NO_ITEM``; items that do not pass the filter are left out.

    ``excluded``: distinct item indexes of each request; ``live``: its running counts of items that pass.
    """
    packed = np.full((len(excluded), max((len(items) for items in excluded), default=0)), NO_ITEM, dtype=np.int32)
    for row, items in zip(packed, excluded, strict=True):
        row[: len(items)] = items
    out = torch.from_numpy(packed).to(live[0].device)
    for row_out, items, counts in zip(out, excluded, live, strict=True):
        if len(items):
            index = row_out[: len(items)].long()
            row_out[: len(items)].masked_fill_(counts[index + 1] == counts[index], NO_ITEM)
    return out.sort(dim=1).values
