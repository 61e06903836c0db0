"""The level loop of the beam search: head, expand and select, ancestry, decode; then leaves to items."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.decoder import ContextTable, Decoder
from engine.model.head import LevelHead
from engine.model.spec import LevelSpec
from engine.search.policy import BatchPolicy
from engine.state.beam_kv import BeamKV
from engine.state.context_kv import ContextKV
from kernels import backend
from kernels.backend import LevelTries


@dataclass(frozen=True, slots=True)
class SearchInput:
    """What the search of ``R`` requests needs beside the model, all on the device.

    ``hidden``: ``[R, H]``, normed state of each last context token; ``tries``: one per level; ``excluded``: int32
    ``[R, E]`` as in ``kernels.selection.expand_select``; ``vocab``: normalise over the whole vocabulary. A request
    whose context has no token is padding: it has no beams.
    """

    hidden: Tensor
    table: ContextTable
    tries: Sequence[LevelTries]
    excluded: Tensor
    policy: BatchPolicy
    vocab: bool


@dataclass(frozen=True, slots=True)
class SearchOutput:
    """``items`` int32 and ``scores`` float32 ``[R, top_k]``, valid up to ``count`` int32 ``[R]``.

    ``widths``: int32 ``[R, levels]``, beams after each level; -1 from the level on whose scores had a NaN.
    """

    items: Tensor
    scores: Tensor
    count: Tensor
    widths: Tensor


def beam_search(
    search: SearchInput,
    decoder: Decoder,
    head: LevelHead,
    levels: Sequence[LevelSpec],
    context: ContextKV,
    beams: BeamKV,
) -> SearchOutput:
    """Exact constrained beam search over all levels; issues no synchronisation of its own."""
    policy = search.policy
    requests, device = len(search.hidden), search.hidden.device
    hidden = search.hidden[:, None]
    scores = torch.zeros((requests, 1), device=device)
    nodes = torch.zeros((requests, 1), dtype=torch.int32, device=device)
    width = (search.table.length > 0).to(torch.int32)
    widths = []
    for number, level in enumerate(levels):
        chosen = backend.expand_select(
            head.logits(hidden, number),
            scores,
            nodes,
            width,
            policy.widths[number],
            search.tries[number],
            search.excluded,
            head.log_z(hidden) if search.vocab else None,
            policy.legal,
            policy.margin,
            policy.min_width,
            policy.out_widths[number],
        )
        scores, nodes, width = chosen.scores, chosen.nodes, chosen.width
        widths.append(width)
        if number < len(levels) - 1:
            beams.advance(number, chosen.parents, width)
            hidden = decoder.decode(chosen.codes + level.token_base, number, search.table, context, beams)
    resolved = backend.resolve_leaves(
        nodes, width, search.tries[-1], search.excluded, policy.max_per_leaf, policy.top_k, policy.out_items
    )
    return SearchOutput(
        items=resolved.items,
        scores=scores.gather(1, resolved.beams.long()),
        count=resolved.found,
        widths=torch.stack(widths, dim=1),
    )
