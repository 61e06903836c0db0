"""Several small arrays in one block of memory, so that one copy takes them to the device or back."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

_ALIGNMENT = 16

Field = tuple[torch.dtype, tuple[int, ...]]


class Layout:
    """Where the named arrays lie in a block of ``nbytes`` bytes."""

    def __init__(self, **fields: Field) -> None:
        self._fields: list[tuple[str, int, int, Field]] = []
        self.nbytes = 0
        for name, field in fields.items():
            dtype, shape = field
            size = dtype.itemsize * prod(shape)
            self._fields.append((name, self.nbytes, self.nbytes + size, field))
            self.nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT

    def over(self, memory: Tensor) -> Mapping[str, Tensor]:
        """The arrays as views of ``memory``, uint8 ``[nbytes]``."""
        return {name: memory[begin:end].view(dtype).view(shape) for name, begin, end, (dtype, shape) in self._fields}


def host_memory(nbytes: int, device: torch.device) -> Tensor:
    """Uint8 ``[nbytes]`` on the host, pinned where ``device`` copies from it. Torch keeps the pinned blocks for reuse
    and hands none out again before the copies that use it are over.
    """
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
