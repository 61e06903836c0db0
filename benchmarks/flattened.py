"""Decode attention as engines do it that flatten beams: every beam is a sequence that reads the shared context again.

Several ways are tried, each with the query heads of a key head packed, and the fastest is taken. The decoded tokens are
left out, which favours it.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.cases import Case
from benchmarks.measure import graph_ms
from engine.settings import PAGE_TOKENS
from kernels import backend

_LIBRARY_PAGE = 256  # FlashAttention wants a multiple
_TOLERANCE = 0.02
_RUNS = 9

Attention = Callable[[], Tensor]
Prepare = Callable[[Tensor, Tensor], Attention]
"""Lays the keys and values of a layer out, ``[R, kv_heads, context, D]``; the attention gives ``[R * W, heads, D]``."""


@dataclass(frozen=True, slots=True)
class Flattened:
    """The fastest way on this device, and for every way that was tried milliseconds of a layer, or why it has none."""

    name: str
    prepare: Prepare
    tried: dict[str, float | str]


def fastest_flattened(case: Case, device: torch.device, dtype: torch.dtype) -> Flattened:
    """Each way is compared with plain attention before it is timed. The beam has one width."""
    shape = case.shape
    q = torch.randn(case.batch * case.width, shape.heads, shape.head_dim, device=device, dtype=dtype)
    k, v = torch.randn(2, case.batch, shape.kv_heads, case.context, shape.head_dim, device=device, dtype=dtype)
    expected = _expected(case, q, k, v)
    tried: dict[str, float | str] = {}
    ways = dict(_ways(case, q))
    for name, prepare in ways.items():
        try:
            attention = prepare(k, v)
            off = float((attention().double() - expected).norm() / expected.double().norm())
            tried[name] = graph_ms(attention, device, _RUNS).median_ms if off < _TOLERANCE else f"off by {off:.2g}"
        except Exception as error:  # what a library refuses here is a finding, not an end
            tried[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
    times = {name: time for name, time in tried.items() if isinstance(time, float)}
    best = min(times, key=lambda name: times[name])
    return Flattened(best, ways[best], tried)


def _expected(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """In plain torch: all rows of a key head at once, so that the context is not read again for every beam."""
    size = (case.batch, case.width, case.shape.kv_heads, -1, case.shape.head_dim)
    packed = q.view(size).transpose(1, 2).flatten(2, 3).float()
    weights = (packed @ k.float().transpose(-1, -2) * case.shape.head_dim**-0.5).softmax(dim=-1)
    mixed = (weights @ v.float()).unflatten(2, (case.width, -1))
    return torch.reshape(mixed.transpose(1, 2), q.shape)


def _ways(case: Case, q: Tensor) -> Iterator[tuple[str, Prepare]]:
    if q.device.type == "cuda":
        yield "FlashAttention, contiguous", _by_library(case, q, SDPBackend.FLASH_ATTENTION)
        yield "cuDNN, contiguous", _by_library(case, q, SDPBackend.CUDNN_ATTENTION)
        yield "FlashAttention, paged", _by_library_pages(case, q)
    else:
        yield "torch, contiguous", _by_library(case, q, SDPBackend.MATH)
    yield "own kernel, paged, each beam a request", _by_own_pages(case, q)


def _by_library(case: Case, q: Tensor, library: SDPBackend) -> Prepare:
    """One call a request; its beams share the context by a stride of zero."""
    queries = q.view(case.batch, case.width, case.shape.heads, 1, -1)

    def prepare(k: Tensor, v: Tensor) -> Attention:
        contexts = [[x[r].expand(case.width, -1, -1, -1) for x in (k, v)] for r in range(case.batch)]

        def attention() -> Tensor:
            with sdpa_kernel(library):
                parts = [
                    F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
                    for query, (keys, values) in zip(queries, contexts, strict=True)
                ]
            return torch.cat(parts).view(q.shape)

        return attention

    return prepare


def _by_library_pages(case: Case, q: Tensor) -> Prepare:
    """FlashAttention over pages, which torch has from 2.12 on."""
    begin = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    table, length = _page_table(case, _LIBRARY_PAGE, q.device)

    def prepare(k: Tensor, v: Tensor) -> Attention:
        from torch.nn.attention.varlen import varlen_attn

        if "block_table" not in inspect.signature(varlen_attn).parameters:
            raise NotImplementedError("not in this version of torch")
        keys, values = (_as_pages(x, _LIBRARY_PAGE).transpose(1, 2).contiguous() for x in (k, v))

        def attention() -> Tensor:
            out = varlen_attn(
                q, keys, values, begin, None, 1, case.context, enable_gqa=True, seqused_k=length, block_table=table
            )
            return out if isinstance(out, Tensor) else out[0]

        return attention

    return prepare


def _by_own_pages(case: Case, q: Tensor) -> Prepare:
    """The kernel takes decoded tokens apart from the context: the last token counts as one."""
    shape, device = case.shape, q.device
    table, length = _page_table(case, PAGE_TOKENS, device)
    length = length - 1
    width = torch.ones_like(length)
    path = torch.zeros((1, len(q), 1), dtype=torch.int32, device=device)
    scale = shape.head_dim**-0.5

    def prepare(k: Tensor, v: Tensor) -> Attention:
        keys, values = (_as_pages(x, PAGE_TOKENS) for x in (k, v))
        own_k, own_v = (x[:, :, -1].repeat_interleave(case.width, dim=0)[None, :, None] for x in (k, v))
        return lambda: backend.beam_decode_attention(
            q[:, None], keys, values, table, length, own_k, own_v, path, width, scale
        )[:, 0]

    return prepare


def _page_table(case: Case, page: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pages of every beam's request, int32 ``[R * W, pages]``, and its length, int32 ``[R * W]``."""
    pages = -(-case.context // page)
    table = torch.arange(case.batch * pages, dtype=torch.int32, device=device).view(case.batch, pages)
    length = torch.full((case.batch * case.width,), case.context, dtype=torch.int32, device=device)
    return table.repeat_interleave(case.width, dim=0), length


def _as_pages(x: Tensor, page: int) -> Tensor:
    """``[R, heads, context, D]`` as ``[R * pages, heads, page, D]``, the last page filled with zeros."""
    requests, heads, context, dim = x.shape
    padded = F.pad(x, (0, 0, 0, -context % page))
    return padded.view(requests, heads, -1, page, dim).transpose(1, 2).reshape(-1, heads, page, dim).contiguous()
