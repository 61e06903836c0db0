"""The host arrays of a batch, packed and copied to the device."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.decoder import ContextTable, PackedPrompts
from engine.settings import PAGE_TOKENS


def pack(
    tokens: Sequence[NDArray[np.int32]], pages: Sequence[NDArray[np.int32]], device: torch.device
) -> tuple[PackedPrompts, ContextTable]:
    """Prompts (none empty) with the pages leased for each, as one token axis and a page table."""
    lengths = np.array([len(prompt) for prompt in tokens], dtype=np.int32)
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = np.arange(begin[-1], dtype=np.int32) - np.repeat(begin[:-1], lengths)
    page_table = np.zeros((len(pages), max(len(held) for held in pages)), dtype=np.int32)
    for row, held in zip(page_table, pages, strict=True):
        row[: len(held)] = held
    owner = np.repeat(np.arange(len(lengths)), lengths)
    slots = page_table[owner, positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS

    def upload(array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    prompts = PackedPrompts(
        tokens=upload(np.concatenate(tokens)),
        positions=upload(positions),
        slots=upload(slots),
        begin=upload(begin),
        last=upload(begin[1:].astype(np.int64) - 1),
    )
    return prompts, ContextTable(page_table=upload(page_table), length=upload(lengths))
