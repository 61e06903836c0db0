"""The normaliser of a softmax over many outputs, without their logits."""

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 8192  # outputs whose logits are in memory at a time


def log_sum_exp(x: Tensor, weight: Tensor) -> Tensor:
    """Log-sum-exp over the outputs of ``x @ weight.T``, accumulated in float32.

    ``x``: ``[T, K]``; ``weight``: ``[V, K]``; float32 ``[T]``.
    """
    total = torch.full((len(x),), -torch.inf, device=x.device)
    for start in range(0, len(weight), _CHUNK):
        logits = F.linear(x.float(), weight[start : start + _CHUNK].float())
        total = torch.logaddexp(total, logits.logsumexp(dim=-1))
    return total
