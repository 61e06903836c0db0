"""``qk_norm_rope_write`` in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.elementwise import qk_norm_rope_write as twin
from kernels.linear.scaled import Product, ScaledProduct, scales_of, values_of


@triton.jit
def _load(heads, scales, scale, columns, inside, SCALED: tl.constexpr):
    x = tl.load(heads + columns, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        x = x * scale * tl.load(scales + columns, mask=inside, other=0.0)
    return x


@triton.jit
def _load_rotated(
    heads, scales, scale, weight, columns, swapped, inside, eps, cosine, sine,
    DIM: tl.constexpr, NORM: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    x = _load(heads, scales, scale, columns, inside, SCALED)
    partner = _load(heads, scales, scale, swapped, inside, SCALED)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        x = x * inverse * tl.load(weight + columns).to(tl.float32)
        partner = partner * inverse * tl.load(weight + swapped).to(tl.float32)
    return x * cosine + partner * sine


@triton.jit(do_not_specialize=["block_tokens"])
def rotate_and_write(
    qkv, scales, column_scales, q_weight, k_weight, cos, sin, positions, slots, q_out, k_out, v_out,
    k_block_stride, k_head_stride, k_token_stride, v_block_stride, v_head_stride, v_token_stride, block_tokens, eps,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, Q_ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
    DIM: tl.constexpr, NORM: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Program ``token``: all its heads at once."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, DIM)[None, :]
    half = columns % (DIM // 2)
    swapped = (columns + DIM // 2) % DIM
    position = tl.load(positions + token).to(tl.int64)
    cosine = tl.load(cos + position * (DIM // 2) + half)
    sine = tl.load(sin + position * (DIM // 2) + half)
    sine = tl.where(columns < DIM // 2, -sine, sine)

    row = qkv + token * ((Q_HEADS + 2 * KV_HEADS) * DIM)
    scale = tl.load(scales + token) if SCALED else 1.0
    head = tl.arange(0, Q_ROWS)[:, None]
    inside = head < Q_HEADS
    q = _load_rotated(
        row + head * DIM, column_scales + head * DIM, scale, q_weight, columns, swapped, inside, eps, cosine, sine,
        DIM, NORM, SCALED,
    )  # fmt: skip
    tl.store(q_out + token * (Q_HEADS * DIM) + head * DIM + columns, q.to(q_out.dtype.element_ty), mask=inside)

    slot = tl.load(slots + token)
    if slot < 0:
        return
    block = (slot // block_tokens).to(tl.int64)
    place = (slot % block_tokens).to(tl.int64)
    head = tl.arange(0, KV_ROWS)[:, None]
    inside = head < KV_HEADS
    keys = row + Q_HEADS * DIM + head * DIM
    key_scales = column_scales + Q_HEADS * DIM + head * DIM
    k = _load_rotated(keys, key_scales, scale, k_weight, columns, swapped, inside, eps, cosine, sine, DIM, NORM, SCALED)
    v = _load(keys + KV_HEADS * DIM, key_scales + KV_HEADS * DIM, scale, columns, inside, SCALED)
    k_at = block * k_block_stride + head * k_head_stride + place * k_token_stride + columns
    v_at = block * v_block_stride + head * v_head_stride + place * v_token_stride + columns
    tl.store(k_out + k_at, k.to(k_out.dtype.element_ty), mask=inside)
    tl.store(v_out + v_at, v.to(v_out.dtype.element_ty), mask=inside)


def qk_norm_rope_write(
    qkv: Product,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    k_out: Tensor,
    v_out: Tensor,
    slots: Tensor,
) -> Tensor:
    """As the torch twin, which also takes heads whose size is no power of two; ``qkv``, ``cos``, ``sin`` contiguous."""
    values = values_of(qkv)
    _, kv_heads, block, dim = k_out.shape
    if dim.bit_count() != 1:
        return twin.qk_norm_rope_write(qkv, q_weight, k_weight, eps, cos, sin, positions, k_out, v_out, slots)
    tokens = values.shape[0]
    heads = values.shape[1] // dim - 2 * kv_heads
    q_out = torch.empty((tokens, heads, dim), dtype=values.dtype, device=values.device)
    norm = q_weight is not None and k_weight is not None
    rotate_and_write[(tokens,)](
        values, *scales_of(qkv, cos), q_weight if norm else cos, k_weight if norm else cos, cos, sin,
        positions, slots, q_out, k_out, v_out,
        *k_out.stride()[:3], *v_out.stride()[:3], block, eps,
        Q_HEADS=heads, KV_HEADS=kv_heads, Q_ROWS=triton.next_power_of_2(heads),
        KV_ROWS=triton.next_power_of_2(kv_heads), DIM=dim, NORM=norm, SCALED=isinstance(qkv, ScaledProduct),
        num_warps=4,
    )  # fmt: skip
    return q_out
