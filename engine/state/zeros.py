"""Zeroed memory for keys and values: masked ones still multiply, and what lies in fresh memory may be NaN."""

from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

_ADDRESSES: Final = 1 << 47
"""Bytes of a process's address space."""


def zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """On the CPU memory is committed only where it is written. Raises MemoryError or torch.OutOfMemoryError."""
    size = prod(shape) * dtype.itemsize
    if size >= _ADDRESSES:  # the libraries call this overflow or a wrong value
        raise MemoryError(f"{size >> 30} GiB")
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    lazy = np.zeros(shape, dtype=np.float32 if dtype == torch.float32 else np.int16)
    return torch.from_numpy(lazy).view(dtype)
