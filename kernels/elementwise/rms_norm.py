"""Root-mean-square normalisation, with the residual addition that precedes it."""

import torch
from torch import Tensor

from kernels.elementwise.quantise import quantise
from kernels.linear.scaled import Fp8Matrix, Product, in_float32, values_of


def rms_norm(x: Product, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Normalise ``h = x + residual`` over its last axis; returns ``(norm(h) * weight, h)``.

    ``x``, ``residual``: ``[..., H]``; ``weight``: ``[H]``. ``h`` is rounded to ``x``'s dtype, the rest is float32.
    """
    normed, h = _normed(x, weight, eps, residual)
    return normed.to(h.dtype), h


def rms_norm_fp8(x: Product, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Fp8Matrix, Tensor]:
    """As ``rms_norm`` for ``[T, H]``, the normed rows quantised instead of rounded."""
    normed, h = _normed(x, weight, eps, residual)
    return quantise(normed), h


def _normed(x: Product, weight: Tensor, eps: float, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    wide = in_float32(x) if residual is None else in_float32(x) + residual.float()
    h = wide.to(values_of(x).dtype)
    wide = h.float()
    inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return wide * inverse * weight.float(), h
