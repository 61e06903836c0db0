"""From hidden states to the logits of one SID level."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.spec import LevelSpec
from kernels import backend


class LevelHead:
    """Multiplies by a level's rows of the output matrix ``head`` (``[vocabulary, hidden]``) only."""

    def __init__(self, head: Tensor, levels: Sequence[LevelSpec]) -> None:
        self._head = head
        self._levels = [head[level.token_base : level.token_base + level.size] for level in levels]

    def logits(self, hidden: Tensor, level: int) -> Tensor:
        """Float32 ``[..., codes]`` for ``hidden`` ``[..., H]``."""
        return _product(hidden, self._levels[level])

    def log_z(self, hidden: Tensor) -> Tensor:
        """Log-sum-exp over the whole vocabulary, float32 ``[...]``; its logits are never all in memory."""
        return backend.log_sum_exp(hidden.flatten(0, -2), self._head).view(hidden.shape[:-1])


def _product(hidden: Tensor, rows: Tensor) -> Tensor:
    """``hidden @ rows.T`` accumulated and returned in float32."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        flat = torch.mm(hidden.flatten(0, -2), rows.t(), out_dtype=torch.float32)
        return flat.view(*hidden.shape[:-1], -1)
    return F.linear(hidden.float(), rows.float())
