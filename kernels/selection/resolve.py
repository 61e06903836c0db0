"""From the leaves of the last level to items."""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.selection.tries import LevelTries, live_below


class Resolved(NamedTuple):
    """``items`` and ``beams`` (the row of the item's leaf), int32 ``[R, out_items]``, padded with 0.

    ``found``: int32 ``[R]``, items that there are.
    """

    items: Tensor
    beams: Tensor
    found: Tensor


def resolve_leaves(
    nodes: Tensor,
    width: Tensor,
    tries: LevelTries,
    excluded: Tensor,
    max_per_leaf: Tensor,
    top_k: Tensor,
    out_items: int,
) -> Resolved:
    """The live items of the leaves in beam order, inside a leaf in item order, until ``top_k[r]``.

    - ``nodes``: int32 ``[R, W]``, leaves (the children of ``tries``, which is the last level's), best first
    - ``width``: int32 ``[R]``, leaves that exist; not positive means none
    - ``excluded``: int32 ``[R, E]`` as in ``expand_select``
    - ``max_per_leaf``, ``top_k``: int32 ``[R]``; ``top_k`` at most ``out_items``
    """
    device = nodes.device
    items = torch.zeros((len(width), out_items), dtype=torch.int32, device=device)
    beams = torch.zeros_like(items)
    found = torch.zeros(len(width), dtype=torch.int32, device=device)
    for r, leaves in enumerate(width.tolist()):
        if leaves <= 0:
            continue
        begin, end = tries.item_begin[r][nodes[r, :leaves].long()], tries.item_begin[r][nodes[r, :leaves].long() + 1]
        available = live_below(begin, end, tries.live[r], excluded[r])
        filled = torch.minimum(available, max_per_leaf[r]).cumsum(0)
        taken = min(int(filled[-1]), int(top_k[r]))
        place = torch.arange(taken, device=device)
        beam = torch.searchsorted(filled, place, right=True)
        in_leaf = place - torch.where(beam > 0, filled[beam - 1], 0)
        before = live_below(torch.zeros_like(begin), begin, tries.live[r], excluded[r])
        items[r, :taken] = _live_item(before[beam] + in_leaf, tries.live[r], excluded[r])
        beams[r, :taken] = beam.int()
        found[r] = taken
    return Resolved(items, beams, found)


def _live_item(ordinal: Tensor, live: Tensor, excluded: Tensor) -> Tensor:
    """The item that has ``ordinal`` items before it, counting only those that pass the filter and are not excluded."""
    taken_out = excluded[excluded < len(live) - 1].long()
    # An excluded item hides one place of the filtered order: shift the ordinal past all that stand before it.
    left_before = live[taken_out] - torch.arange(len(taken_out), device=live.device)
    passed = ordinal + torch.searchsorted(left_before, ordinal, right=True)
    return (torch.searchsorted(live, passed.to(live.dtype) + 1) - 1).int()
