"""Which attention kernel runs what."""

from functools import cache

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


def fits_triton(head_dim: int) -> bool:
    """Triton's tiles are powers of two, and a matrix product needs 16; other heads are left to the torch twin."""
    return head_dim >= 16 and head_dim.bit_count() == 1


@cache
def multiprocessors(device: torch.device) -> int:
    """Programs of the largest kind that a CUDA device runs at once."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
