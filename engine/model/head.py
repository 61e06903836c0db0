"""From hidden states to the logits of one SID level."""

from collections.abc import Sequence

from torch import Tensor

from engine.model.spec import LevelSpec
from kernels import backend


class LevelHead:
    """Multiplies by a level's rows of the output matrix ``head`` (``[vocabulary, hidden]``) only."""

    def __init__(self, head: Tensor, levels: Sequence[LevelSpec]) -> None:
        self._head = head
        self._levels = [head[level.token_base : level.token_base + level.size] for level in levels]

    def logits(self, hidden: Tensor, level: int) -> tuple[Tensor, Tensor | None]:
        """Float32 ``[..., codes]`` for ``hidden`` ``[..., H]``, and log-sum-exps ``[...]`` where they come along."""
        logits, log_z = backend.logits_and_log_z(hidden.flatten(0, -2), self._levels[level])
        return logits.view(*hidden.shape[:-1], -1), None if log_z is None else log_z.view(hidden.shape[:-1])

    def log_z(self, hidden: Tensor) -> Tensor:
        """Log-sum-exp over the whole vocabulary, float32 ``[...]``; its logits are never all in memory."""
        return backend.log_sum_exp(hidden.flatten(0, -2), self._head).view(hidden.shape[:-1])
