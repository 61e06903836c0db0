"""The parts of attention that are computed apart, each split of the context and in decoding the own tokens, joined."""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.splits import MEASURED, SplitRule
from kernels.elementwise.triton_quantise import empty_fp8, to_fp8
from kernels.linear.scaled import Fp8Matrix

LOG2_E = 1.4426950408889634
_JOINED_ROWS = 16


@triton.jit
def split_size(pages, rows, split_pages, wide):
    """Pages of a split of a context of ``pages`` pages, for ``rows`` query rows of a KV head; see ``SplitRule``."""
    return tl.where(rows > wide, pages, split_pages)


@dataclass(frozen=True, slots=True)
class Parts:
    """Attention over each split of the contexts: ``values`` ``[splits, R, W, Hq, D]`` in the queries' dtype, each
    normalised by itself, and log2-sum-exps ``logs`` ``[splits, R, W, Hq]``, float32; what is past a request's splits or
    beams is not set.
    """

    values: Tensor
    logs: Tensor
    rule: SplitRule

    @classmethod
    def of(cls, q: Tensor, max_pages: int, split_pages: int | None) -> Self:
        """Memory for the parts. ``split_pages``: of every split; None: as measured."""
        rule = MEASURED if split_pages is None else SplitRule(split_pages)
        splits = rule.most_splits(max_pages)
        return cls(
            values=torch.empty((splits, *q.shape), dtype=q.dtype, device=q.device),
            logs=torch.empty((splits, *q.shape[:3]), dtype=torch.float32, device=q.device),
            rule=rule,
        )

    @property
    def splits(self) -> int:
        return self.values.shape[0]

    def join(
        self, q: Tensor, own_k: Tensor, own_v: Tensor, path: Tensor, context_len: Tensor, width: Tensor, scale: float,
        page: int,
    ) -> Tensor:  # fmt: skip
        """The result, with the own tokens; arguments as in ``decode.beam_decode_attention``. ``page``: its tokens."""
        out = torch.empty_like(q)
        self._join(q, own_k, own_v, path, context_len, width, scale, page, out, None)
        return out

    def join_fp8(
        self, q: Tensor, own_k: Tensor, own_v: Tensor, path: Tensor, context_len: Tensor, width: Tensor, scale: float,
        page: int,
    ) -> Fp8Matrix:  # fmt: skip
        """As ``join``, quantised: ``[R * W, Hq * D]``. The number of heads is a power of two."""
        requests, beams, heads, dim = q.shape
        out = empty_fp8(requests * beams, heads * dim, q.device)
        self._join(q, own_k, own_v, path, context_len, width, scale, page, out.values, out.scale)
        return out

    def _join(
        self, q: Tensor, own_k: Tensor, own_v: Tensor, path: Tensor, context_len: Tensor, width: Tensor, scale: float,
        page: int, out: Tensor, out_scale: Tensor | None,
    ) -> None:  # fmt: skip
        requests, beams, heads, dim = q.shape
        steps, slots, kv_heads = own_k.shape[0], own_k.shape[2], own_k.shape[3]
        rows = _JOINED_ROWS if out_scale is None else heads  # a scale is that of a whole beam
        join[(triton.cdiv(beams * heads, rows), requests)](
            self.values, self.logs, q, own_k, own_v, path, context_len, width, out,
            self.logs if out_scale is None else out_scale,
            beams, requests, slots, own_k.stride(0), path.stride(0), path.stride(1), self.rule.pages, self.rule.wide,
            scale * LOG2_E,
            HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PAGE=page, STEPS=steps, ROWS=rows,
            QUANTISE=out_scale is not None, num_warps=4,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "W", "R", "slots", "step_stride", "path_step", "path_row", "split_pages", "wide"
    ]
)  # fmt: skip
def join(
    values, logs, q, own_k, own_v, path, context_len, width, out, out_scale,
    W, R, slots, step_stride, path_step, path_row, split_pages, wide, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, QUANTISE: tl.constexpr,
):  # fmt: skip
    """Program ``(ROWS rows, request)``; a row is a beam and a query head. Rows of no beam become zero.

    With ``QUANTISE`` a program is a beam, ``ROWS`` are its heads, and ``out_scale`` is float32 ``[R * W]``.
    """
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    beams = tl.load(width + r)
    some = rows < beams * HEADS
    at = (r * W * HEADS + rows).to(tl.int64)
    cells = at[:, None] * DIM + columns[None, :]
    if tl.program_id(0) * ROWS >= beams * HEADS:
        nothing = tl.zeros([ROWS, DIM], tl.float32).to(out.dtype.element_ty)
        tl.store(out + cells, nothing, mask=(rows < W * HEADS)[:, None])
        if QUANTISE:
            tl.store(out_scale + r * W + tl.program_id(0), 1.0)
        return
    pages = tl.maximum((tl.load(context_len + r) + PAGE - 1) // PAGE, 1)
    group: tl.constexpr = HEADS // KV_HEADS
    parts = tl.cdiv(pages, split_size(pages, beams * group, split_pages, wide))

    peak = tl.load(logs + at, mask=some, other=0.0)
    sums = tl.load(values + cells, mask=some[:, None], other=0.0).to(tl.float32)
    total = tl.full([ROWS], 1.0, tl.float32)
    wide_q = tl.load(q + cells, mask=some[:, None], other=0.0).to(tl.float32) * scale
    head = r.to(tl.int64) * slots * (KV_HEADS * DIM) + (rows % HEADS // group) * DIM
    for step in tl.static_range(STEPS):
        slot = tl.load(path + step * path_step + r * path_row + rows // HEADS, mask=some, other=0).to(tl.int64)
        own = step * step_stride.to(tl.int64) + slot * (KV_HEADS * DIM) + head
        k = tl.load(own_k + own[:, None] + columns[None, :], mask=some[:, None], other=0.0).to(tl.float32)
        v = tl.load(own_v + own[:, None] + columns[None, :], mask=some[:, None], other=0.0).to(tl.float32)
        peak, total, sums = _add_part(peak, total, sums, tl.sum(wide_q * k, 1), v)
    part = tl.full([], 1, tl.int64)
    step = R * W * HEADS
    while part < parts:
        log = tl.load(logs + part * step + at, mask=some, other=0.0)
        value = tl.load(values + part * step * DIM + cells, mask=some[:, None], other=0.0).to(tl.float32)
        peak, total, sums = _add_part(peak, total, sums, log, value)
        part += 1
    value = tl.where(some[:, None], sums / total[:, None], 0.0)
    if QUANTISE:
        fitted, of_beam = to_fp8(value)
        tl.store(out_scale + r * W + tl.program_id(0), of_beam)
        tl.store(out + cells, fitted)
    else:
        tl.store(out + cells, value.to(out.dtype.element_ty), mask=(rows < W * HEADS)[:, None])


@triton.jit
def _add_part(peak, total, sums, log, value):
    """Add ``value`` with the log2 weight ``log`` to the running sums."""
    new_peak = tl.maximum(peak, log)
    shrink = tl.exp2(peak - new_peak)
    weight = tl.exp2(log - new_peak)
    return new_peak, total * shrink + weight, sums * shrink[:, None] + value * weight[:, None]
