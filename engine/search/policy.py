"""The beam policies of a batch as tensors; fixed, scheduled and margin are one form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.request import RecallRequest

_NO_LIMIT = torch.iinfo(torch.int32).max


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Per request, on the device: int32 ``[R]`` but ``margin`` float32 (infinite: none) and ``legal`` bool.

    ``widths``: int32 ``[R]`` for each level; ``out_widths`` and ``out_items`` bound them on the host: the rows that the
    batch's tensors have.
    """

    widths: tuple[Tensor, ...]
    out_widths: tuple[int, ...]
    margin: Tensor
    min_width: Tensor
    legal: Tensor
    max_per_leaf: Tensor
    top_k: Tensor
    out_items: int

    @classmethod
    def of(cls, requests: Sequence[RecallRequest], prefixes: Sequence[Sequence[int]], device: torch.device) -> Self:
        """``prefixes``: for each request the nodes of its trie at each level; no beam is wider than that."""
        widths = [
            [min(wanted, exist) for wanted, exist in zip(request.beam.widths, nodes, strict=True)]
            for request, nodes in zip(requests, prefixes, strict=True)
        ]

        def column(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        by_level = list(zip(*widths, strict=True))
        margins = [torch.inf if request.beam.margin is None else request.beam.margin for request in requests]
        return cls(
            widths=tuple(column(level) for level in by_level),
            out_widths=tuple(max(level) for level in by_level),
            margin=torch.tensor(margins, dtype=torch.float32, device=device),
            min_width=column([request.beam.min_width for request in requests]),
            legal=torch.tensor([request.score == "legal" for request in requests], device=device),
            max_per_leaf=column([request.max_items_per_sid or _NO_LIMIT for request in requests]),
            top_k=column([request.top_k for request in requests]),
            out_items=max(request.top_k for request in requests),
        )
