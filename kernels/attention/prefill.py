"""Causal attention of packed requests over their pages: a resident prefix plus the new tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.paging import gather_pages


def paged_prefill_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    query_begin: Tensor,
    context_len: Tensor,
    scale: float,
) -> Tensor:
    """Attend causally from packed queries; returns ``[T, Hq, D]`` in ``q``'s dtype.

    - ``q``: ``[T, Hq, D]``; request ``r`` owns rows ``query_begin[r] .. query_begin[r + 1]`` (int32 ``[R + 1]``)
    - ``k_pages``, ``v_pages``: ``[pages, Hkv, page tokens, D]``; ``page_table``: int32 ``[R, max_pages]``
    - ``context_len``: int32 ``[R]``, keys in the pages; the request's queries stand at its last positions

    Products and softmax accumulate in float32.
    """
    out = torch.empty_like(q)
    begins = query_begin.tolist()
    for r, length in enumerate(context_len.tolist()):
        begin, end = begins[r], begins[r + 1]
        if begin == end:
            continue
        rows = q[begin:end].float().transpose(0, 1)[None]  # [1, Hq, n, D]
        k = gather_pages(k_pages, page_table[r], length).float()[None]
        v = gather_pages(v_pages, page_table[r], length).float()[None]
        prefix = length - (end - begin)
        mask = None
        if prefix and end - begin > 1:
            position = torch.arange(prefix, length, device=q.device)
            mask = torch.arange(length, device=q.device) <= position[:, None]
        attended = F.scaled_dot_product_attention(
            rows, k, v, attn_mask=mask, is_causal=prefix == 0, scale=scale, enable_gqa=True
        )
        out[begin:end] = attended[0].transpose(0, 1).to(q.dtype)
    return out
