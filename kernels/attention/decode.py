"""Beam decode attention: every beam of a request reads the request's one context and its own few decoded tokens."""

import torch
from torch import Tensor

from kernels.attention.paging import gather_pages
from kernels.elementwise.quantise import quantise
from kernels.linear.scaled import Fp8Matrix


def beam_decode_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    context_len: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    path: Tensor,
    width: Tensor,
    scale: float,
) -> Tensor:
    """Attend from the newest token of each beam; returns ``[R, W, Hq, D]`` in ``q``'s dtype, zero in padding rows.

    - ``q``: ``[R, W, Hq, D]``; query head ``h`` reads key head ``h // (Hq // Hkv)``
    - ``k_pages``, ``v_pages``: ``[pages, Hkv, page tokens, D]``; ``page_table``: int32 ``[R, max_pages]``
    - ``context_len``: int32 ``[R]``, tokens of the context
    - ``own_k``, ``own_v``: ``[S, R, slots, Hkv, D]``, the ``S`` tokens decoded so far, the current one included
    - ``path``: int32 ``[S, R, W]``; ``path[t, r, b]`` is the slot that holds token ``t`` of beam ``b``
    - ``width``: int32 ``[R]``, live beams; rows from there on are padding (all of them where it is not positive)

    Products and softmax accumulate in float32.
    """
    steps, kv_heads, head_dim = own_k.shape[0], own_k.shape[3], own_k.shape[4]
    out = torch.zeros_like(q)
    for r, (beams, length) in enumerate(zip(width.tolist(), context_len.tolist(), strict=True)):
        if beams <= 0:
            continue
        rows = q[r, :beams].float() * scale
        grouped = rows.view(beams, kv_heads, -1, head_dim).transpose(0, 1)  # [Hkv, B, G, D]
        k = gather_pages(k_pages, page_table[r], length).float()
        v = gather_pages(v_pages, page_table[r], length).float()
        slots = path[:, r, :beams].long()
        at = torch.arange(steps, device=q.device)[:, None]
        k_own = own_k[at, r, slots].float().permute(2, 1, 3, 0)  # [Hkv, B, D, S]
        v_own = own_v[at, r, slots].float().permute(2, 1, 0, 3)  # [Hkv, B, S, D]

        context = grouped.reshape(kv_heads, -1, head_dim) @ k.transpose(1, 2)  # beams and query heads are one row axis
        own = (grouped @ k_own).view(kv_heads, -1, steps)
        weights = torch.cat([context, own], dim=-1).softmax(dim=-1)
        merged = (weights[..., :length] @ v).view(grouped.shape)
        merged += weights[..., length:].view(kv_heads, beams, -1, steps) @ v_own
        out[r, :beams] = merged.transpose(0, 1).reshape(beams, -1, head_dim).to(q.dtype)
    return out


def beam_decode_attention_fp8(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    context_len: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    path: Tensor,
    width: Tensor,
    scale: float,
) -> Fp8Matrix:
    """As ``beam_decode_attention``, quantised: ``[R * W, Hq * D]`` with a scale a beam."""
    attended = beam_decode_attention(q, k_pages, v_pages, page_table, context_len, own_k, own_v, path, width, scale)
    return quantise(attended.flatten(0, 1).flatten(1))
