"""``rms_norm`` in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def normalise(
    x, residual, weight, out, sum_out,
    eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Program ``row``."""
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + columns
    h = tl.load(x + at, mask=inside, other=0.0)
    if ADD:
        h = (h.to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)).to(h.dtype)
        tl.store(sum_out + at, h, mask=inside)
    wide = h.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    scaled = wide * inverse * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, scaled.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As the torch twin; ``x`` and ``residual`` contiguous."""
    size = x.shape[-1]
    out = torch.empty_like(x)
    h = x if residual is None else torch.empty_like(x)
    block = triton.next_power_of_2(size)
    normalise[(x.numel() // size,)](
        x, x if residual is None else residual, weight, out, h,
        eps,
        SIZE=size, BLOCK=block, ADD=residual is not None, num_warps=max(1, min(8, block // 512)),
    )  # fmt: skip
    return out, h
