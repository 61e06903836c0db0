"""Which products the kernels for Hopper compute."""

import torch
from torch import Tensor


def fits_hopper(x: Tensor, weight: Tensor) -> bool:
    """``x @ weight.T`` in bfloat16, rows of a multiple of 8, on a device of compute capability 9.0."""
    return (
        x.is_cuda
        and x.dtype == weight.dtype == torch.bfloat16
        and x.shape[-1] % 8 == 0
        and torch.cuda.get_device_capability(x.device) == (9, 0)
    )
