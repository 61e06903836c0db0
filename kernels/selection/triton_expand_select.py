"""``expand_select`` in Triton: four launches, no host synchronisation, all sizes on the device."""

from dataclasses import dataclass
from typing import Self

import torch
import triton
from torch import Tensor

from kernels.selection.expand_select import Selection
from kernels.selection.tries import LevelTries
from kernels.selection.triton_expand import BINS, expand
from kernels.selection.triton_rank import rank, refine, sift

SHORT_LIST = 4096
"""Keys that are put in order without a radix selection first."""
RADIX = 8 * 256
PARTS_OF_ONE_BEAM = 8
"""Programs that share the children of a root."""
EXPAND_REGISTERS = 64
"""So that four programs of ``expand`` share a multiprocessor."""
REFINE_PROGRAMS = 256
"""Programs of ``refine`` over all requests, no more than the device runs at once: they wait for each other."""


@dataclass(frozen=True, slots=True)
class SelectionWorkspace:
    """Scratch memory of ``expand_select``; may be used again and again for the same shapes, on one stream at a time.

    ``candidates``: float32 ``[R, W, C]``. ``keys`` int64 and ``parents`` int32, the short list: ``[R, L]``. The other
    arrays are small. ``counts`` starts as zeros and is left clean by every call.
    """

    candidates: Tensor
    keys: Tensor
    parents: Tensor
    children: Tensor
    best: Tensor
    counts: Tensor

    @classmethod
    def of(
        cls,
        requests: int,
        width: int,
        codes: int,
        out_width: int,
        device: torch.device,
        short_list: int = SHORT_LIST,
    ) -> Self:
        """Scratch for ``[requests, width, codes]`` logits and at most ``out_width`` beams after the step."""
        short_list = max(short_list, 4 * out_width)
        parts = PARTS_OF_ONE_BEAM if width == 1 else 1
        return cls(
            candidates=torch.empty((requests, width, codes), dtype=torch.float32, device=device),
            keys=torch.empty((requests, short_list), dtype=torch.int64, device=device),
            parents=torch.empty((requests, short_list), dtype=torch.int32, device=device),
            children=torch.empty((2, requests, width), dtype=torch.int32, device=device),
            best=torch.empty((requests, width, parts), dtype=torch.float32, device=device),
            counts=torch.zeros((requests, BINS.value + RADIX + 4), dtype=torch.int32, device=device),
        )


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
    workspace: SelectionWorkspace | None = None,
    early_end: bool = True,
) -> Selection:
    """As the torch twin. ``logits`` may also be bfloat16. ``early_end`` changes the time, never the result."""
    requests, beams, codes = logits.shape
    device = logits.device
    space = workspace or SelectionWorkspace.of(requests, beams, codes, out_width, device)
    histogram, radix, counters = _split(space.counts, requests)
    first, count = space.children
    short_list, parts = space.keys.shape[1], space.best.shape[2]
    out = Selection(
        nodes=torch.empty((requests, out_width), dtype=torch.int32, device=device),
        scores=torch.empty((requests, out_width), dtype=torch.float32, device=device),
        parents=torch.empty((requests, out_width), dtype=torch.int32, device=device),
        codes=torch.empty((requests, out_width), dtype=torch.int32, device=device),
        width=torch.empty(requests, dtype=torch.int32, device=device),
    )
    code_block = min(triton.next_power_of_2(codes), 8192)
    expand[(beams * parts, requests)](
        logits, scores, nodes, width, next_width, tries.address, excluded, scores if log_z is None else log_z, legal,
        space.candidates, first, count, space.best, histogram, counters, radix,
        beams, codes, excluded.shape[1], requests,
        CODES=code_block, CHILDREN=min(max(code_block, 32), 1024), SPLIT=parts, GIVEN_Z=log_z is not None, RADIX=RADIX,
        num_warps=8, maxnreg=EXPAND_REGISTERS,
    )  # fmt: skip
    sift_beams = 1 if parts > 1 else 2 if requests * beams <= 2048 else 4
    sift[(triton.cdiv(beams, sift_beams) * parts, requests)](
        space.candidates, first, count, space.best, histogram, scores, width, next_width, counters,
        space.keys, space.parents,
        beams, codes, short_list,
        BEAMS=sift_beams, HEAD=1024 // sift_beams, SPLIT=parts, EARLY_END=early_end, num_warps=4,
    )  # fmt: skip
    programs = 1 if device.type == "cpu" else max(1, REFINE_PROGRAMS // requests)
    refine[(programs, requests)](
        space.candidates, first, count, width, next_width, counters, radix, space.keys, space.parents,
        beams, codes, short_list,
        PROGRAMS=programs, BLOCK=min(triton.next_power_of_2(codes), 4096), RADIX=RADIX, num_warps=8,
    )  # fmt: skip
    rank[(triton.cdiv(max(short_list, out_width), 16), requests)](
        space.keys, space.parents, counters, histogram, width, next_width, margin, min_width, tries.address,
        *out,
        requests, short_list, out_width,
        ROWS=16, BLOCK=256, num_warps=4,
    )  # fmt: skip
    return out


def _split(counts: Tensor, requests: int) -> tuple[Tensor, Tensor, Tensor]:
    """Histogram, radix tables and counters of a workspace."""
    flat = counts.view(-1)
    bins, tables = BINS.value * requests, RADIX * requests
    return flat[:bins], flat[bins : bins + tables], flat[bins + tables :]
