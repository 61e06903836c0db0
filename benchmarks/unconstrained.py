"""The engine without its constraint: any code may follow any other. It finds no items; what it does is take time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels import backend
from kernels.selection.expand_select import Selection
from kernels.selection.tries import LevelTries


@contextmanager
def without_constraint(codes: int, device: torch.device) -> Iterator[None]:
    """The search of engines made and run inside takes the best of every code of every beam, by the same kernels."""
    kept = backend.expand_select
    backend.expand_select = _free_select(kept, codes, device)
    try:
        yield
    finally:
        backend.expand_select = kept


def _free_select(kernel: Callable[..., Selection], codes: int, device: torch.device) -> Callable[..., Selection]:
    root, below = full_levels(codes, device)

    @cache
    def tries(first: bool, requests: int) -> LevelTries:
        columns = root if first else below
        return LevelTries.of(*([column] * requests for column in columns))

    def select(
        logits: Tensor, scores: Tensor, nodes: Tensor, width: Tensor, keep: Tensor, real: LevelTries, *more: Any
    ) -> Selection:
        first = logits.shape[1] == 1
        found = kernel(logits, scores, nodes % codes, width, keep, tries(first, len(width)), *more)
        leaves = min(len(code) for code in real.code)
        return found._replace(nodes=found.nodes % leaves)  # the last level's are looked up in the catalog

    return select


Columns = tuple[Tensor, Tensor, Tensor, Tensor]
"""``child_begin``, ``code``, ``item_begin`` and ``live`` of ``LevelTries``."""


def full_levels(codes: int, device: torch.device) -> tuple[Columns, Columns]:
    """The two upper levels of a trie in which every continuation is legal. Deeper ones are like the second."""
    int32 = torch.int32
    every = torch.arange(codes * codes + 1, dtype=int32, device=device)
    code = torch.arange(codes, dtype=int32, device=device)
    root = torch.tensor([0, codes], dtype=int32, device=device)
    first = (root, code, every[::codes].contiguous(), every)
    return first, (every[::codes].contiguous(), code.repeat(codes), every, every)
