"""The first half of a feed-forward block: gates, what they let through, and their product."""

import torch.nn.functional as F
from torch import Tensor

from kernels.elementwise.silu_mul import silu_mul


def gated_product(x: Tensor, weight: Tensor) -> Tensor:
    """``silu(x @ gate.T) * (x @ up.T)``, ``[T, N]``. ``x``: ``[T, K]``; ``weight``: ``[2 N, K]``, gate, then up."""
    return silu_mul(F.linear(x, weight))
