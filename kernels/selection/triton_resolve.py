"""``resolve_leaves`` in Triton: one launch, no host synchronisation."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.selection.resolve import Resolved
from kernels.selection.tries import LevelTries
from kernels.selection.triton_expand import count_below


@triton.jit
def _live_before(item, live, excluded, E):
    """Items before ``item`` that pass and are not excluded."""
    return tl.load(live + item) - count_below(excluded, 0, E, item)


@triton.jit(do_not_specialize=["W", "E", "R", "out_items"])
def resolve(
    nodes, width, address, excluded, max_per_leaf, top_k, items_out, beams_out, found_out,
    W, E, R, out_items,
    BEAMS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Program ``(PLACES places of the answer, request)``."""
    r = tl.program_id(1)
    item_begin = tl.load(address + 2 * R + r).to(tl.pointer_type(tl.int32))
    live = tl.load(address + 3 * R + r).to(tl.pointer_type(tl.int32))
    excluded += r.to(tl.int64) * E
    nodes += r * W
    b = tl.arange(0, BEAMS)
    some = b < tl.load(width + r)
    leaf = tl.load(nodes + b, mask=some, other=0)
    begin = tl.load(item_begin + leaf)
    end = tl.load(item_begin + leaf + 1)
    available = _live_before(end, live, excluded, E) - _live_before(begin, live, excluded, E)
    filled = tl.cumsum(tl.where(some, tl.minimum(available, tl.load(max_per_leaf + r)), 0), 0)
    found = tl.minimum(tl.max(filled, 0), tl.load(top_k + r))
    if tl.program_id(0) == 0:
        tl.store(found_out + r, found)

    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    taken = place < found
    passed = filled[None, :] <= place[:, None]  # beams whose items stand before this place
    beam = tl.where(taken, tl.sum(passed.to(tl.int32), 1), 0)
    in_leaf = place - tl.max(tl.where(passed, filled[None, :], 0), 1)
    leaf = tl.load(nodes + beam, mask=taken, other=0)
    low = tl.load(item_begin + leaf)
    high = tl.load(item_begin + leaf + 1) - 1
    wanted = _live_before(low, live, excluded, E) + in_leaf + 1
    open_ = taken & (low < high)
    while tl.max(open_.to(tl.int32), 0) > 0:  # the first item with enough live ones up to it
        middle = (low + high) // 2
        reached = _live_before(middle + 1, live, excluded, E)
        high = tl.where(open_ & (reached >= wanted), middle, high)
        low = tl.where(open_ & (reached < wanted), middle + 1, low)
        open_ = taken & (low < high)
    inside = place < out_items
    tl.store(items_out + r * out_items + place, tl.where(taken, low, 0), mask=inside)
    tl.store(beams_out + r * out_items + place, beam, mask=inside)


def resolve_leaves(
    nodes: Tensor,
    width: Tensor,
    tries: LevelTries,
    excluded: Tensor,
    max_per_leaf: Tensor,
    top_k: Tensor,
    out_items: int,
) -> Resolved:
    """As the torch twin."""
    requests, beams = nodes.shape
    items = torch.empty((requests, out_items), dtype=torch.int32, device=nodes.device)
    out = Resolved(items, torch.empty_like(items), torch.empty(requests, dtype=torch.int32, device=nodes.device))
    block = triton.next_power_of_2(beams)
    places = max(1, min(16, 16384 // block))
    resolve[(triton.cdiv(out_items, places), requests)](
        nodes, width, tries.address, excluded, max_per_leaf, top_k, *out,
        beams, excluded.shape[1], requests, out_items,
        BEAMS=block, PLACES=places, num_warps=8,
    )  # fmt: skip
    return out
