"""Which attention runs on the kernels written for Hopper."""

import torch
from torch import Tensor


def fits_hopper(q: Tensor, pages: Tensor) -> bool:
    """Bfloat16 queries ``[..., 128]`` over pages ``[pages, Hkv, 128, 128]`` on a device of compute capability 9.0."""
    return (
        q.is_cuda
        and q.dtype == torch.bfloat16
        and pages.shape[2:] == (128, 128)
        and torch.cuda.get_device_capability(q.device) == (9, 0)
    )
