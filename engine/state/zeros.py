"""Zeroed memory for keys and values: masked ones still multiply, and what lies in fresh memory may be NaN."""

import numpy as np
import torch
from torch import Tensor


def zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """On the CPU memory is committed only where it is written."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    lazy = np.zeros(shape, dtype=np.float32 if dtype == torch.float32 else np.int16)
    return torch.from_numpy(lazy).view(dtype)
