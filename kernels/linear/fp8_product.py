"""Products of float8 matrices, ``x @ weight.T``, in the two forms that libraries have."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.linear.scaled import Fp8Matrix, ScaledProduct


def tensorwise(x: Fp8Matrix, weight: Fp8Matrix, unit: Tensor, dtype: torch.dtype) -> ScaledProduct:
    """The product of the values alone, in ``dtype``; its scales are left to the next kernel, which reads it anyway.

    ``x``: ``[T, K]``; ``weight``: ``[N, K]``, sides that 16 divides; ``unit``: float32 1 on the device.
    """
    return ScaledProduct(_product(x.values, weight.values, unit, unit, None, dtype), x.scale, weight.scale)


def rowwise(x: Fp8Matrix, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The product in ``dtype``, scaled before it is rounded; ``bias``: ``[N]``."""
    return _product(x.values, weight.values, x.scale[:, None], weight.scale[None, :], bias, dtype)


def _product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    if not a.is_cuda:
        scaled = F.linear(a.float(), b.float()) * a_scale * b_scale
        return (scaled if bias is None else scaled + bias.float()).to(dtype)
    return torch._scaled_mm(  # noqa: SLF001  (torch has no public name for it in all supported versions)
        a, b.t(), scale_a=a_scale, scale_b=b_scale, bias=bias, out_dtype=dtype, use_fast_accum=True
    )
