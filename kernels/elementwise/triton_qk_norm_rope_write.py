"""``qk_norm_rope_write`` in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.elementwise import qk_norm_rope_write as twin


@triton.jit
def _load_rotated(head, weight, columns, swapped, inside, eps, cosine, sine, DIM: tl.constexpr, NORM: tl.constexpr):
    x = tl.load(head + columns, mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(head + swapped, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        x = x * inverse * tl.load(weight + columns).to(tl.float32)
        partner = partner * inverse * tl.load(weight + swapped).to(tl.float32)
    return x * cosine + partner * sine


@triton.jit(do_not_specialize=["block_tokens"])
def rotate_and_write(
    qkv, q_weight, k_weight, cos, sin, positions, slots, q_out, k_out, v_out,
    k_block_stride, k_head_stride, k_token_stride, v_block_stride, v_head_stride, v_token_stride, block_tokens, eps,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, Q_ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
    DIM: tl.constexpr, NORM: tl.constexpr,
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
    head = tl.arange(0, Q_ROWS)[:, None]
    inside = head < Q_HEADS
    q = _load_rotated(row + head * DIM, q_weight, columns, swapped, inside, eps, cosine, sine, DIM, NORM)
    tl.store(q_out + token * (Q_HEADS * DIM) + head * DIM + columns, q.to(q_out.dtype.element_ty), mask=inside)

    slot = tl.load(slots + token)
    if slot < 0:
        return
    block = (slot // block_tokens).to(tl.int64)
    place = (slot % block_tokens).to(tl.int64)
    head = tl.arange(0, KV_ROWS)[:, None]
    inside = head < KV_HEADS
    keys = row + Q_HEADS * DIM + head * DIM
    k = _load_rotated(keys, k_weight, columns, swapped, inside, eps, cosine, sine, DIM, NORM)
    v = tl.load(keys + KV_HEADS * DIM + columns, mask=inside)
    k_at = block * k_block_stride + head * k_head_stride + place * k_token_stride + columns
    v_at = block * v_block_stride + head * v_head_stride + place * v_token_stride + columns
    tl.store(k_out + k_at, k.to(k_out.dtype.element_ty), mask=inside)
    tl.store(v_out + v_at, v, mask=inside)


def qk_norm_rope_write(
    qkv: Tensor,
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
    _, kv_heads, block, dim = k_out.shape
    if dim.bit_count() != 1:
        return twin.qk_norm_rope_write(qkv, q_weight, k_weight, eps, cos, sin, positions, k_out, v_out, slots)
    tokens = qkv.shape[0]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    q_out = torch.empty((tokens, heads, dim), dtype=qkv.dtype, device=qkv.device)
    norm = q_weight is not None and k_weight is not None
    rotate_and_write[(tokens,)](
        qkv, q_weight if norm else qkv, k_weight if norm else qkv, cos, sin, positions, slots, q_out, k_out, v_out,
        *k_out.stride()[:3], *v_out.stride()[:3], block, eps,
        Q_HEADS=heads, KV_HEADS=kv_heads, Q_ROWS=triton.next_power_of_2(heads),
        KV_ROWS=triton.next_power_of_2(kv_heads), DIM=dim, NORM=norm, num_warps=4,
    )  # fmt: skip
    return q_out
