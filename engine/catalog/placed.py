"""What lies on the device of a catalog's items: codes, flags and tags, in the order of the items."""

import numpy as np
import torch
from torch import Tensor

from engine.catalog.catalog import Catalog
from engine.catalog.ferry import upload
from engine.catalog.filters import FilterKey


class PlacedItems:
    """The items of a catalog on a device, shared by all versions that are made of it by deltas."""

    def __init__(self, catalog: Catalog, device: torch.device) -> None:
        self.items = catalog.items
        self._index = catalog.tags
        self._codes = upload(catalog.sids.view(np.int16 if catalog.sids.dtype == np.uint16 else np.int32), device)
        self._recallable = upload(catalog.recallable, device)
        self._bits = upload(catalog.tags.bits, device)
        self._runs = upload(catalog.tags.items_flat, device)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self._codes, self._recallable, self._bits, self._runs))

    def sids(self) -> Tensor:
        """Codes, int32 ``[levels, items]``."""
        codes = self._codes.t().int()
        if self._codes.dtype == torch.int16:  # which stand for codes without a sign
            codes &= 0xFFFF
        return codes.contiguous()

    def live(self, key: FilterKey) -> Tensor:
        """The items that may be recalled under a filter, bool ``[items]``. A tag that no item has: an empty bitmap."""
        live = self._recallable.clone()
        if key.any:
            wanted = torch.zeros_like(live)
            for tag in key.any:
                wanted |= self._held(tag)
            live &= wanted
        for tag in key.all:
            live &= self._held(tag)
        for tag in key.none:
            live &= ~self._held(tag)
        return live

    def _held(self, tag: str) -> Tensor:
        row = self._index.row_of(tag)
        if row is not None:
            shifts = torch.arange(8, dtype=torch.uint8, device=self._bits.device)
            return (self._bits[row].unsqueeze(1) >> shifts & 1).view(torch.bool).flatten()[: self.items]
        held = torch.zeros_like(self._recallable)
        held[self._runs[self._index.run_of(tag)].long()] = True
        return held
