"""Root-mean-square normalisation, with the residual addition that precedes it."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Normalise ``h = x + residual`` over its last axis; returns ``(norm(h) * weight, h)``.

    ``x``, ``residual``: ``[..., H]``; ``weight``: ``[H]``. ``h`` is rounded to ``x``'s dtype, the rest is float32.
    """
    h = x if residual is None else x + residual
    wide = h.float()
    inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse * weight.float()).to(x.dtype), h
