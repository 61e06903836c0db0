"""Float8 with a scale a row: what the products of ``kernels/linear`` multiply."""

from torch import Tensor

from kernels.linear.scaled import FP8, FP8_MAX, Fp8Matrix

SMALLEST = 1e-12
"""The least magnitude that a row is taken to have: a row of zeros has a scale, too."""


def quantise(x: Tensor) -> Fp8Matrix:
    """``x`` (``[T, N]``) in e4m3; the largest magnitude of each row becomes the largest that e4m3 has."""
    wide = x.float()
    scale = wide.abs().amax(dim=-1).clamp_min(SMALLEST) / FP8_MAX
    return Fp8Matrix((wide / scale[:, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale)
