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
def _halves(heads, scales, scale, half, inside, HALF: tl.constexpr, SCALED: tl.constexpr):
    """Both halves of the heads."""
    return (
        _load(heads, scales, scale, half, inside, SCALED),
        _load(heads + HALF, scales + HALF, scale, half, inside, SCALED),
    )


@triton.jit
def _rotated(low, high, weight, half, eps, cosine, sine, HALF: tl.constexpr, NORM: tl.constexpr):
    """The halves normed and rotated."""
    if NORM:
        inverse = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)[:, None]
        low = low * inverse * tl.load(weight + half).to(tl.float32)
        high = high * inverse * tl.load(weight + HALF + half).to(tl.float32)
    return low * cosine - high * sine, high * cosine + low * sine


@triton.jit(do_not_specialize=["block_tokens"])
def rotate_and_write(
    qkv, scales, column_scales, q_weight, k_weight, cos, sin, positions, slots, q_out, k_out, v_out,
    k_block_stride, k_head_stride, k_token_stride, v_block_stride, v_head_stride, v_token_stride, block_tokens, eps,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, Q_ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
    HALF: tl.constexpr, NORM: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Program ``token``: all its heads at once, brought before anything is written."""
    DIM: tl.constexpr = 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, HALF)[None, :]
    columns = tl.arange(0, DIM)[None, :]
    head = tl.arange(0, Q_ROWS)[:, None]
    kv_head = tl.arange(0, KV_ROWS)[:, None]
    inside = head < Q_HEADS
    kv_inside = kv_head < KV_HEADS
    position = tl.load(positions + token).to(tl.int64)
    slot = tl.load(slots + token)
    scale = tl.load(scales + token) if SCALED else 1.0

    row = qkv + token * ((Q_HEADS + 2 * KV_HEADS) * DIM)
    keys = row + (Q_HEADS + kv_head) * DIM
    key_scales = column_scales + (Q_HEADS + kv_head) * DIM
    low, high = _halves(row + head * DIM, column_scales + head * DIM, scale, half, inside, HALF, SCALED)
    k_low, k_high = _halves(keys, key_scales, scale, half, kv_inside, HALF, SCALED)
    v = _load(keys + KV_HEADS * DIM, key_scales + KV_HEADS * DIM, scale, columns, kv_inside, SCALED)
    cosine = tl.load(cos + position * HALF + half)
    sine = tl.load(sin + position * HALF + half)

    low, high = _rotated(low, high, q_weight, half, eps, cosine, sine, HALF, NORM)
    q_at = q_out + token * (Q_HEADS * DIM) + head * DIM + half
    tl.store(q_at, low.to(q_out.dtype.element_ty), mask=inside)
    tl.store(q_at + HALF, high.to(q_out.dtype.element_ty), mask=inside)
    if slot < 0:
        return
    block = (slot // block_tokens).to(tl.int64)
    place = (slot % block_tokens).to(tl.int64)
    low, high = _rotated(k_low, k_high, k_weight, half, eps, cosine, sine, HALF, NORM)
    k_at = k_out + block * k_block_stride + kv_head * k_head_stride + place * k_token_stride + half
    tl.store(k_at, low.to(k_out.dtype.element_ty), mask=kv_inside)
    tl.store(k_at + HALF, high.to(k_out.dtype.element_ty), mask=kv_inside)
    v_at = v_out + block * v_block_stride + kv_head * v_head_stride + place * v_token_stride + columns
    tl.store(v_at, v.to(v_out.dtype.element_ty), mask=kv_inside)


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
        KV_ROWS=triton.next_power_of_2(kv_heads), HALF=dim // 2, NORM=norm, SCALED=isinstance(qkv, ScaledProduct),
        num_warps=4,
    )  # fmt: skip
    return q_out
