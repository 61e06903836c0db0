"""Attention of a few new tokens over a long context: the context in parts, which are computed apart and joined."""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.splits import TILE_ROWS, PromptRule

_ROWS, _PROGRAMS = 4, 256
"""Of a program that joins, a single warp, and of a request."""
_TILE_ROWS = tl.constexpr(TILE_ROWS)


@triton.jit
def prompt_split_size(pages, rows, split_pages, tiles, wide):
    """Pages of a split of a context of ``pages`` pages, for ``rows`` query rows of a KV head; see ``PromptRule``."""
    blocks = tl.maximum((rows + _TILE_ROWS - 1) // _TILE_ROWS, 1)
    splits = tl.maximum(tl.minimum(tiles // blocks, pages // split_pages), 1)
    return tl.where(rows > wide, pages, (pages + splits - 1) // splits)


@dataclass(frozen=True, slots=True)
class PromptParts:
    """Attention of a few new tokens over each split of their context, each normalised by itself: ``values``
    ``[R, room, Hq, D]``, in ``room`` one split after the other with all the request's tokens; log2-sum-exps ``logs``
    ``[R, room, Hq]``, float32. ``few``: most tokens of a request that is split.
    """

    values: Tensor
    logs: Tensor
    rule: PromptRule
    splits: int
    few: int

    @classmethod
    def of(cls, q: Tensor, requests: int, group: int, max_pages: int, rule: PromptRule) -> Self:
        """Memory for the parts."""
        tokens, heads, dim = q.shape
        room = rule.room(tokens, group, max_pages)
        return cls(
            values=torch.empty((requests, room, heads, dim), dtype=q.dtype, device=q.device),
            logs=torch.empty((requests, room, heads), dtype=torch.float32, device=q.device),
            rule=rule,
            splits=rule.most_splits(max_pages),
            few=rule.most_tokens(tokens, group),
        )

    @property
    def room(self) -> int:
        return self.values.shape[1]

    def join(self, query_begin: Tensor, context_len: Tensor, out: Tensor, kv_heads: int, page: int) -> None:
        """Write the results of the requests that are split to ``out`` ``[T, Hq, D]``. ``page``: its tokens."""
        if self.splits == 1:
            return
        requests, _, heads, dim = self.values.shape
        programs = min(triton.cdiv(self.few * heads, _ROWS), _PROGRAMS)
        join_prompts[(programs, requests)](
            self.values, self.logs, query_begin, context_len, out, self.room, self.rule.pages, self.rule.tiles,
            self.rule.wide,
            HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PAGE=page, ROWS=_ROWS,
            PARTS=triton.next_power_of_2(self.rule.tiles), num_warps=1,
        )  # fmt: skip


@triton.jit(do_not_specialize=["room", "split_pages", "tiles", "wide"])
def join_prompts(
    values, logs, query_begin, context_len, out, room, split_pages, tiles, wide,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Program ``(rows, request)``; a row is a new token and a query head. ``values``, ``logs``: see ``PromptParts``.

    ``PARTS`` is that of the rule, whatever the batch holds: it decides in which order sums are taken.
    """
    r = tl.program_id(1)
    begin = tl.load(query_begin + r)
    tokens = tl.load(query_begin + r + 1) - begin
    length = tl.load(context_len + r)
    pages = tl.maximum((length + PAGE - 1) // PAGE, 1)
    size = prompt_split_size(pages, tokens * (HEADS // KV_HEADS), split_pages, tiles, wide)
    if size >= pages:
        return
    columns = tl.arange(0, DIM)
    part = tl.arange(0, PARTS)
    for block in tl.range(tl.program_id(0), tl.cdiv(tokens * HEADS, ROWS), tl.num_programs(0)):
        rows = block * ROWS + tl.arange(0, ROWS)
        some = rows < tokens * HEADS
        parts = (length - tokens + rows // HEADS) // (size * PAGE) + 1  # the row sees no key of those behind
        seen = (part[:, None] < parts[None, :]) & some[None, :]
        at = (r.to(tl.int64) * room + part[:, None] * tokens) * HEADS + rows[None, :]
        log = tl.load(logs + at, mask=seen, other=float("-inf"))
        weight = tl.exp2(log - tl.maximum(tl.max(log, 0), -1e38)[None, :])
        cells = at[:, :, None] * DIM + columns[None, None, :]
        value = tl.load(values + cells, mask=seen[:, :, None], other=0.0).to(tl.float32)
        total = tl.where(some, tl.sum(weight, 0), 1.0)
        joined = tl.sum(value * weight[:, :, None], 0) / total[:, None]
        there = (begin.to(tl.int64) * HEADS + rows)[:, None] * DIM + columns[None, :]
        tl.store(out + there, joined.to(out.dtype.element_ty), mask=some[:, None])
