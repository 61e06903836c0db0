"""``rms_norm`` and ``rms_norm_fp8`` in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.elementwise.triton_quantise import empty_fp8, store_fp8, warps_for
from kernels.linear.scaled import Fp8Matrix, Product, ScaledProduct, scales_of, values_of


@triton.jit
def normalise(
    x, x_rows, x_columns, residual, weight, out, out_scale, sum_out,
    eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr, ADD: tl.constexpr, QUANTISE: tl.constexpr,
):  # fmt: skip
    """Program ``row``."""
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    row = tl.program_id(0).to(tl.int64)
    at = row * SIZE + columns
    h = tl.load(x + at, mask=inside, other=0.0)
    if SCALED:
        h = h.to(tl.float32) * tl.load(x_rows + row) * tl.load(x_columns + columns, mask=inside, other=0.0)
    if ADD:
        h = h.to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if SCALED or ADD:
        h = h.to(sum_out.dtype.element_ty)
        tl.store(sum_out + at, h, mask=inside)
    wide = h.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    scaled = wide * inverse * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if QUANTISE:
        store_fp8(scaled, out + row * SIZE, columns, inside, out_scale + row)
    else:
        tl.store(out + at, scaled.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Product, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As the torch twin; ``x`` and ``residual`` contiguous."""
    out = torch.empty_like(values_of(x))
    return out, _launch(x, weight, eps, residual, out, None)


def rms_norm_fp8(x: Product, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Fp8Matrix, Tensor]:
    """As the torch twin; ``x`` and ``residual`` contiguous."""
    rows, size = values_of(x).shape
    out = empty_fp8(rows, size, weight.device)
    return out, _launch(x, weight, eps, residual, out.values, out.scale)


def _launch(
    x: Product, weight: Tensor, eps: float, residual: Tensor | None, out: Tensor, out_scale: Tensor | None
) -> Tensor:
    """Returns the sum; an absent tensor's place is held by another that is not touched."""
    values = values_of(x)
    size = values.shape[-1]
    h = values if isinstance(x, Tensor) and residual is None else torch.empty_like(values)
    block = triton.next_power_of_2(size)
    normalise[(values.numel() // size,)](
        values, *scales_of(x, weight), values if residual is None else residual, weight,
        out, weight if out_scale is None else out_scale, h,
        eps,
        SIZE=size, BLOCK=block, SCALED=isinstance(x, ScaledProduct), ADD=residual is not None,
        QUANTISE=out_scale is not None, num_warps=warps_for(block),
    )  # fmt: skip
    return h
