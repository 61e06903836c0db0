"""The two stages of a batch on the device, prefill and search, as functions of blocks of memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.model.head import LevelHead
from engine.model.spec import LevelSpec
from engine.runtime.prefill_input import PrefillShape
from engine.runtime.search_input import SearchShape, TrieColumns
from engine.search.beam_search import beam_search
from engine.state.beam_kv import BeamMemory
from engine.state.context_kv import ContextKV


@dataclass(frozen=True, slots=True)
class Stages:
    """The model and its state on one device."""

    decoder: Decoder
    head: LevelHead
    levels: Sequence[LevelSpec]
    context: ContextKV
    beams: BeamMemory

    def prefill(self, shape: PrefillShape, memory: Tensor) -> Tensor:
        """Fill the contexts' pages; the last token's hidden state of each request, ``[R, H]``."""
        return self.decoder.prefill(*shape.over(memory), self.context)

    def search(self, shape: SearchShape, memory: Tensor, hidden: Tensor, tries: Sequence[TrieColumns]) -> Tensor:
        """The output of a search as one block of memory, laid out by ``shape``."""
        beams = self.beams.beams(shape.requests, max(shape.widths[:-1], default=0))
        found = beam_search(
            shape.input_over(memory, hidden, tries), self.decoder, self.head, self.levels, self.context, beams
        )
        output = torch.empty(shape.outputs().nbytes, dtype=torch.uint8, device=memory.device)
        into = shape.output_over(output)
        into.items.copy_(found.items)
        into.scores.copy_(found.scores)
        into.count.copy_(found.count)
        into.widths.copy_(found.widths)
        return output
