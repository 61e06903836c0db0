"""What a prefill reads, as one block of memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.decoder import ContextTable, PackedPrompts
from engine.runtime.layout import Layout, host_memory
from engine.settings import PAGE_TOKENS

_IN_PAGE = np.arange(PAGE_TOKENS, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """Sizes of the tensors of a prefill: new tokens of all requests, requests, pages of the longest context."""

    tokens: int
    requests: int
    pages: int

    def holds(self, other: Self) -> bool:
        """Whether prompts of ``other``'s shape also fit this one, with padding."""
        return self.tokens >= other.tokens and self.requests >= other.requests and self.pages >= other.pages

    @lru_cache(maxsize=512)  # noqa: B019  (shapes are small, and few of them are met again and again)
    def layout(self) -> Layout:
        int32 = torch.int32
        return Layout(
            tokens=(int32, (self.tokens,)),
            positions=(int32, (self.tokens,)),
            slots=(int32, (self.tokens,)),
            begin=(int32, (self.requests + 1,)),
            last=(torch.int64, (self.requests,)),
            last_begin=(int32, (self.requests + 1,)),
            page_table=(int32, (self.requests, self.pages)),
            length=(int32, (self.requests,)),
        )

    def over(self, memory: Tensor) -> tuple[PackedPrompts, ContextTable]:
        """The inputs that ``memory`` holds."""
        fields = dict(self.layout().over(memory))
        table = ContextTable(page_table=fields.pop("page_table"), length=fields.pop("length"))
        return PackedPrompts(**fields), table


def pack_prompts(
    shape: PrefillShape,
    tokens: Sequence[NDArray[np.int32]],
    reused: Sequence[int],
    pages: Sequence[NDArray[np.int32]],
    device: torch.device,
) -> Tensor:
    """Prompts with the pages of each, in host memory. So many tokens at the beginning of each (not all) are ``reused``:
    their keys and values are there. What ``shape`` has too much is padding: tokens that are written nowhere, and
    requests without any.
    """
    layout = shape.layout()
    memory = host_memory(layout.nbytes, device)
    into = layout.arrays(memory)
    tokens_of, positions, slots = into["tokens"], into["positions"], into["slots"]
    count, total = len(tokens), 0
    into["begin"][0] = 0
    for request, (prompt, first, held) in enumerate(zip(tokens, reused, pages, strict=True)):
        new = len(prompt) - first
        here = slice(total, total + new)
        page, place = divmod(first, PAGE_TOKENS)
        tokens_of[here] = prompt[first:]
        positions[here] = np.arange(first, len(prompt), dtype=np.int32)
        slots[here] = (held[page:, None] * PAGE_TOKENS + _IN_PAGE).ravel()[place : place + new]
        total += new
        into["begin"][request + 1] = total
    tokens_of[total:] = 0
    positions[total:] = 0
    slots[total:] = -1
    into["begin"][count + 1 :] = total
    into["last_begin"][:] = np.minimum(np.arange(shape.requests + 1), count)
    fill(into["last"], into["begin"][1 : count + 1] - 1, 0)
    fill(into["length"], [len(prompt) for prompt in tokens], 0)
    fill_rows(into["page_table"], pages, 0)
    return memory


def fill(array: NDArray[np.generic], values: Sequence[float] | NDArray[np.generic], padding: float) -> None:
    """``values`` first, ``padding`` after them."""
    array[: len(values)] = values
    array[len(values) :] = padding


def fill_rows(
    array: NDArray[np.generic], rows: Sequence[Sequence[float] | NDArray[np.generic]], padding: float
) -> None:
    """Each of ``rows`` into a row of its own, ``padding`` everywhere else."""
    array[:] = padding
    for into, row in zip(array, rows, strict=False):
        into[: len(row)] = row
