"""What a beam search reads and writes, each as one block of memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.decoder import ContextTable
from engine.runtime.layout import Layout, host_memory
from engine.runtime.prefill_input import fill, fill_rows
from engine.runtime.prepared import PreparedRequest
from engine.search.beam_search import SearchInput, SearchOutput
from engine.search.policy import BatchPolicy
from kernels.backend import NO_ITEM, LevelTries

_NO_LIMIT = torch.iinfo(torch.int32).max
_WIDEST_MARGIN = torch.finfo(torch.float32).max
_LAYOUTS_KEPT = 512
_ALIGNED = 4  # int32 elements: kernels are compiled anew for pointers that are not aligned to 16 bytes


@dataclass(frozen=True, slots=True)
class SearchShape:
    """Sizes of the tensors of a search.

    ``widths``: rows of each request after each level; ``items``: items of an answer; ``pages``: of the longest context;
    ``excluded``: most exclusions of a request; ``vocab``: scores are normalised over the whole vocabulary.
    """

    requests: int
    widths: tuple[int, ...]
    items: int
    pages: int
    excluded: int
    vocab: bool

    @classmethod
    def of(cls, batch: Sequence[PreparedRequest]) -> Self:
        """No larger than the batch needs."""
        return cls(
            requests=len(batch),
            widths=tuple(max(level) for level in zip(*(item.widths for item in batch), strict=True)),
            items=max(item.request.top_k for item in batch),
            pages=max(item.pages for item in batch),
            excluded=max(len(item.excluded) for item in batch),
            vocab=batch[0].request.score == "vocab",
        )

    def holds(self, other: Self) -> bool:
        """Whether a batch of ``other``'s shape also fits this one, with padding."""
        return (
            self.vocab == other.vocab
            and self.requests >= other.requests
            and self.items >= other.items
            and self.pages >= other.pages
            and self.excluded >= other.excluded
            and all(ours >= theirs for ours, theirs in zip(self.widths, other.widths, strict=True))
        )

    @property
    def work(self) -> tuple[int, int, int]:
        """Orders shapes by what a search of that shape costs, padding included."""
        return self.requests * (1 + sum(self.widths[:-1])), self.pages, self.widths[-1]

    @lru_cache(maxsize=_LAYOUTS_KEPT)  # noqa: B019  (shapes are small, and few of them are met again and again)
    def inputs(self) -> Layout:
        requests, levels, int32 = self.requests, len(self.widths), torch.int32
        return Layout(
            address=(torch.int64, (levels, 4, requests)),
            page_table=(int32, (requests, self.pages)),
            length=(int32, (requests,)),
            excluded=(int32, (requests, self.excluded)),
            widths=(int32, (levels, -(-requests // _ALIGNED) * _ALIGNED)),
            margin=(torch.float32, (requests,)),
            min_width=(int32, (requests,)),
            max_per_leaf=(int32, (requests,)),
            top_k=(int32, (requests,)),
            legal=(torch.bool, (requests,)),
        )

    @lru_cache(maxsize=_LAYOUTS_KEPT)  # noqa: B019  (as above)
    def outputs(self) -> Layout:
        return Layout(
            items=(torch.int32, (self.requests, self.items)),
            scores=(torch.float32, (self.requests, self.items)),
            count=(torch.int32, (self.requests,)),
            widths=(torch.int32, (self.requests, len(self.widths))),
        )

    def input_over(self, memory: Tensor, hidden: Tensor, tries: Sequence["TrieColumns"]) -> SearchInput:
        """The input that ``memory`` holds beside ``hidden`` and the tries."""
        fields = self.inputs().over(memory)
        return SearchInput(
            hidden=hidden,
            table=ContextTable(page_table=fields["page_table"], length=fields["length"]),
            tries=[LevelTries(*columns, address) for columns, address in zip(tries, fields["address"], strict=True)],
            excluded=fields["excluded"],
            policy=BatchPolicy(
                widths=fields["widths"][:, : self.requests].unbind(0),
                out_widths=self.widths,
                margin=fields["margin"],
                min_width=fields["min_width"],
                legal=fields["legal"],
                max_per_leaf=fields["max_per_leaf"],
                top_k=fields["top_k"],
                out_items=self.items,
            ),
            vocab=self.vocab,
        )

    def output_over(self, memory: Tensor) -> SearchOutput:
        """The output that ``memory`` holds."""
        return SearchOutput(**self.outputs().over(memory))


TrieColumns = tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]
"""One level of the batch's tries as ``LevelTries`` has them, without their addresses."""


def trie_columns(batch: Sequence[PreparedRequest], requests: int) -> list[TrieColumns]:
    """The tries of a batch by level; padding requests have the first one's."""
    padded = [*batch, *[batch[0]] * (requests - len(batch))]
    return [
        (
            tuple(item.catalog.child_begin[level] for item in padded),
            tuple(item.catalog.code[level] for item in padded),
            tuple(item.catalog.item_begin[level + 1] for item in padded),
            tuple(item.live for item in padded),
        )
        for level in range(batch[0].catalog.levels)
    ]


def pack_search(
    shape: SearchShape,
    batch: Sequence[PreparedRequest],
    pages: Sequence[NDArray[np.int32]],
    tries: Sequence[TrieColumns],
    device: torch.device,
) -> Tensor:
    """The input of a batch in host memory. Padding requests have no context, which is what makes them padding."""
    layout = shape.inputs()
    memory = host_memory(layout.nbytes, device)
    into = layout.arrays(memory)
    requests = [item.request for item in batch]

    into["address"][:] = [[[tensor.data_ptr() for tensor in column] for column in level] for level in tries]
    fill(into["length"], [len(item.prompt.tokens) for item in batch], 0)
    fill_rows(into["page_table"], pages, 0)
    fill_rows(into["excluded"], [item.excluded for item in batch], NO_ITEM)
    fill_rows(into["widths"].T, [item.widths for item in batch], 0)
    fill(into["margin"], [_margin(request.beam.margin) for request in requests], np.inf)
    fill(into["min_width"], [min(request.beam.min_width, _NO_LIMIT) for request in requests], 1)
    fill(into["max_per_leaf"], [min(request.max_items_per_sid or _NO_LIMIT, _NO_LIMIT) for request in requests], 1)
    fill(into["top_k"], [request.top_k for request in requests], 0)
    fill(into["legal"], [request.score == "legal" for request in requests], False)
    return memory


def _margin(margin: float | None) -> float:
    return np.inf if margin is None or margin > _WIDEST_MARGIN else margin
