"""One step of the beam search: expand every beam into its live children, keep the best of all."""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.selection.tries import LevelTries, live_below


class Selection(NamedTuple):
    """The beams after a level, best first, each ``[R, out_width]`` but ``width``.

    ``nodes`` int32, ``scores`` float32, ``parents`` int32 (row in the beams before), ``codes`` int32 (the edge taken).
    ``width``: int32 ``[R]``, beams that exist; -1 if a live child's score is NaN or the request had -1 already.
    Rows from ``width`` on are padding: node, parent and code 0, score -inf.
    """

    nodes: Tensor
    scores: Tensor
    parents: Tensor
    codes: Tensor
    width: Tensor


def expand_select(
    logits: Tensor,
    scores: Tensor,
    nodes: Tensor,
    width: Tensor,
    next_width: Tensor,
    tries: LevelTries,
    excluded: Tensor,
    log_z: Tensor | None,
    legal: Tensor,
    margin: Tensor,
    min_width: Tensor,
    out_width: int,
) -> Selection:
    """The best ``next_width[r]`` live children of each request by (score descending, node ascending); exact.

    A child's score is ``scores + (logits[code] - z)``, where ``z`` is the log-sum-exp of the whole row of logits; or
    ``log_z`` where that is given; or, for requests with ``legal``, the log-sum-exp over the row's live children.

    - ``logits``: float32 ``[R, W, C]``; ``scores``: float32 ``[R, W]``; ``nodes``: int32 ``[R, W]``
    - ``width``: int32 ``[R]``, rows that are beams; ``next_width``: int32 ``[R]``, at most ``out_width``
    - ``excluded``: int32 ``[R, E]``, sorted item indexes that pass the filter, no duplicates, padded with ``NO_ITEM``
    - ``log_z``: float32 ``[R, W]`` or None; ``legal``: bool ``[R]``
    - ``margin``: float32 ``[R]``, at least 0; beams below ``best - margin`` are dropped after the selection, but never
      under ``min_width`` (int32 ``[R]``) of those that exist

    A child is live if ``tries.live`` counts an item below it that is not excluded. -inf is a score like any other.
    """
    shape, device = (len(width), out_width), logits.device
    out = Selection(
        nodes=torch.zeros(shape, dtype=torch.int32, device=device),
        scores=torch.full(shape, -torch.inf, device=device),
        parents=torch.zeros(shape, dtype=torch.int32, device=device),
        codes=torch.zeros(shape, dtype=torch.int32, device=device),
        width=torch.full((len(width),), -1, dtype=torch.int32, device=device),
    )
    legal_modes = legal.tolist()
    for r, (beams, keep) in enumerate(zip(width.tolist(), next_width.tolist(), strict=True)):
        if beams < 0:
            continue
        child, parent = _children(nodes[r, :beams], tries.child_begin[r])
        bounds = tries.item_begin[r]
        alive = live_below(bounds[child], bounds[child + 1], tries.live[r], excluded[r]) > 0
        child, parent = child[alive], parent[alive]
        if not len(child):
            out.width[r] = 0
            continue
        rows = logits[r, :beams]
        code = tries.code[r][child]
        picked = rows[parent, code]
        if legal_modes[r]:
            z = _segment_logsumexp(picked, parent, beams)
        else:
            z = rows.logsumexp(dim=-1) if log_z is None else log_z[r, :beams]
        score = scores[r, parent] + (picked - z[parent])
        if bool(score.isnan().any()):
            continue
        best = torch.topk(selection_keys(score, child), min(keep, len(child))).indices
        kept = _within_margin(score[best], margin[r], min_width[r])
        best = best[:kept]
        out.nodes[r, :kept] = child[best].int()
        out.scores[r, :kept] = score[best]
        out.parents[r, :kept] = parent[best].int()
        out.codes[r, :kept] = code[best]
        out.width[r] = kept
    return out


def selection_keys(score: Tensor, node: Tensor) -> Tensor:
    """Unique int64 keys whose descending order is (score descending, node ascending). -0 and 0 are the same score."""
    bits = (score + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) | (0xFFFFFFFF - node.long())


def _children(nodes: Tensor, child_begin: Tensor) -> tuple[Tensor, Tensor]:
    """Every child of every beam: int64 ``[n]`` node indexes, and the beam each belongs to."""
    first = child_begin[nodes.long()].long()
    count = child_begin[nodes.long() + 1].long() - first
    parent = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), count)
    skipped = count.cumsum(0) - count
    return torch.arange(len(parent), device=nodes.device) + (first - skipped)[parent], parent


def _segment_logsumexp(x: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Log-sum-exp of each run of equal ``segment`` (ascending); float32 ``[segments]``, -inf where a run is empty."""
    lengths = torch.bincount(segment, minlength=segments)
    top = torch.segment_reduce(x, "max", lengths=lengths, initial=-torch.inf)
    total = torch.segment_reduce((x - top[segment]).exp(), "sum", lengths=lengths, initial=0.0)
    return top + total.log()


def _within_margin(score: Tensor, margin: Tensor, min_width: Tensor) -> int:
    """How many of the scores (best first) stay."""
    return min(len(score), max(int((score >= score[0] - margin).sum()), int(min_width)))
