"""What lies between the qkv product and attention: q/k norm, rotary embedding, writing keys and values."""

import torch
from torch import Tensor

from kernels.linear.scaled import Product, in_float32, values_of


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
    """Returns the rotated queries ``[T, Hq, D]``; rotated keys and values go to ``k_out`` and ``v_out``.

    - ``qkv``: ``[T, (Hq + 2 Hkv) D]``, queries first, then keys, then values
    - ``q_weight``, ``k_weight``: ``[D]`` weights of the per-head RMS norm, both or neither
    - ``cos``, ``sin``: float32 ``[positions, D / 2]``; element ``i`` of a head is rotated with element ``i + D / 2``
    - ``positions``: int32 ``[T]``
    - ``k_out``, ``v_out``: ``[N, Hkv, B, D]``: pages of ``B`` tokens, or one decode step of BeamKV with ``B = 1``
    - ``slots``: int32 ``[T]``; token ``t`` goes to ``[slots[t] // B, :, slots[t] % B]``; negative is not written

    Computed in float32, rounded once.
    """
    _, kv_heads, block, head_dim = k_out.shape
    dtype = values_of(qkv).dtype
    wide = in_float32(qkv)
    heads = wide.view(len(wide), -1, head_dim)
    q, k, v = heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    k = _rotate(_norm(k, k_weight, eps), c, s).to(dtype)
    written = slots >= 0
    kept = slots[written].long()
    k_out[kept // block, :, kept % block] = k[written]
    v_out[kept // block, :, kept % block] = v[written].to(dtype)
    return _rotate(_norm(q, q_weight, eps), c, s).to(dtype)


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
