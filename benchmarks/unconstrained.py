"""The engine without its constraint: any code may follow any other. It finds no items; what it does is take time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kernels import backend
from kernels.selection.expand_select import Selection
from kernels.selection.tries import LevelTries


class FreeSelection:
    """``expand_select`` over a trie that has every code below every node.

    Graphs that were captured with it read its memory: it has to outlive them.
    """

    def __init__(self, codes: int, device: torch.device) -> None:
        self._kernel = backend.expand_select
        self._levels = full_levels(codes, device)
        self._places = torch.arange(codes, dtype=torch.int32, device=device)
        self._tries: dict[tuple[bool, int], LevelTries] = {}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The search of engines that are made or run eagerly inside takes the best of every code of every beam."""
        backend.expand_select = self
        try:
            yield
        finally:
            backend.expand_select = self._kernel

    def __call__(
        self, logits: Tensor, scores: Tensor, nodes: Tensor, width: Tensor, keep: Tensor, _real: LevelTries, *more: Any
    ) -> Selection:
        """The nodes of the result are places: each beam has one of its own, that the trie and the catalog have, too."""
        tries = self._tries_of(logits.shape[1] == 1, len(width))
        found = self._kernel(logits, scores, nodes, width, keep, tries, *more)
        return found._replace(nodes=self._places[: found.nodes.shape[1]].expand_as(found.nodes))

    def _tries_of(self, first: bool, requests: int) -> LevelTries:
        if (first, requests) not in self._tries:
            columns = self._levels[0 if first else 1]
            self._tries[first, requests] = LevelTries.of(*([column] * requests for column in columns))
        return self._tries[first, requests]


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
