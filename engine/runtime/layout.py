"""Several small arrays in one block of memory, so that one copy takes them to the device or back."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16
_NUMPY: Mapping[torch.dtype, np.dtype[Any]] = {
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float32: np.dtype(np.float32),
    torch.bool: np.dtype(np.bool_),
}

Field = tuple[torch.dtype, tuple[int, ...]]


class Layout:
    """Where the named arrays lie in a block of ``nbytes`` bytes."""

    def __init__(self, **fields: Field) -> None:
        self._fields: list[tuple[str, slice, Field]] = []
        self.nbytes = 0
        for name, field in fields.items():
            dtype, shape = field
            size = dtype.itemsize * prod(shape)
            self._fields.append((name, slice(self.nbytes, self.nbytes + size), field))
            self.nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT

    def over(self, memory: Tensor) -> Mapping[str, Tensor]:
        """The arrays as views of ``memory``, uint8 ``[nbytes]``."""
        return {name: memory[place].view(dtype).view(shape) for name, place, (dtype, shape) in self._fields}

    def arrays(self, memory: Tensor) -> Mapping[str, NDArray[Any]]:
        """The same for memory of the host, which numpy slices many times faster."""
        block = memory.numpy()
        return {name: block[place].view(_NUMPY[dtype]).reshape(shape) for name, place, (dtype, shape) in self._fields}


def host_memory(nbytes: int, device: torch.device) -> Tensor:
    """Uint8 ``[nbytes]`` on the host, pinned where ``device`` copies from it. Torch keeps the pinned blocks for reuse
    and hands none out again before the copies that use it are over.
    """
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
