"""Attention and selection in float64 and plain loops: what the kernels are held against."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.selection.tries import NO_ITEM, LevelTries

Array = NDArray[np.float64]


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Array:
    """One query ``[Hq, D]`` over ``[n, Hkv, D]``: float64 ``[Hq, D]``."""
    query, k, v = (tensor.double().numpy() for tensor in (q, keys, values))
    out = np.empty_like(query)
    group = query.shape[0] // k.shape[1]
    for head in range(query.shape[0]):
        scores = k[:, head // group] @ query[head] * scale
        weights = np.exp(scores - scores.max())
        out[head] = weights @ v[:, head // group] / weights.sum()
    return out


@dataclass(frozen=True, slots=True)
class Paged:
    """Contexts in shuffled pages: the pools, the tables, and each request's keys and values ``[length, Hkv, D]``."""

    k_pages: Tensor
    v_pages: Tensor
    page_table: Tensor
    context_len: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def paged(lengths: Sequence[int], kv_heads: int, head_dim: int, page: int, seed: int, gain: float = 1.0) -> Paged:
    """Random contexts; the unused tails of pages hold other numbers, which nobody may read."""
    random = torch.Generator().manual_seed(seed)
    needed = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(needed) + 2, generator=random).tolist()
    k_pages = torch.randn((len(order), kv_heads, page, head_dim), generator=random) * gain
    v_pages = torch.randn((len(order), kv_heads, page, head_dim), generator=random)
    table = torch.zeros((len(lengths), max(needed) + 1), dtype=torch.int32)
    keys, values = [], []
    for row, (length, pages) in enumerate(zip(lengths, needed, strict=True)):
        held = [order.pop() for _ in range(pages)]
        table[row, :pages] = torch.tensor(held, dtype=torch.int32)
        keys.append(torch.cat([k_pages[number].transpose(0, 1) for number in held])[:length])
        values.append(torch.cat([v_pages[number].transpose(0, 1) for number in held])[:length])
    return Paged(k_pages, v_pages, table, torch.tensor(lengths, dtype=torch.int32), keys, values)


@dataclass(frozen=True, slots=True)
class PlainLevel:
    """One level of one trie in lists: ``children[node]`` are (node below, code, items below it)."""

    children: list[list[tuple[int, int, range]]]
    passes: list[bool]

    @classmethod
    def random(cls, nodes: int, codes: int, seed: int, most: int = 6) -> "PlainLevel":
        random = np.random.default_rng(seed)
        children, child, item = [], 0, 0
        for _ in range(nodes):
            edges = []
            for code in sorted(random.choice(codes, size=int(random.integers(1, min(codes, most) + 1)), replace=False)):
                below = int(random.integers(1, 4))
                edges.append((child, int(code), range(item, item + below)))
                child, item = child + 1, item + below
            children.append(edges)
        return cls(children, [bool(flag) for flag in random.random(item) < 0.6])

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``child_begin``, ``code``, ``item_begin``, ``live`` as ``LevelTries`` takes them."""
        edges = [edge for node in self.children for edge in node]
        counts = [0, *np.cumsum([len(node) for node in self.children]).tolist()]
        item_begin = [below.start for _, _, below in edges] + [edges[-1][2].stop]
        live = [0, *np.cumsum(self.passes).tolist()]
        columns = (counts, [code for _, code, _ in edges], item_begin, live)
        child_begin, code, items, running = (torch.tensor(column, dtype=torch.int32) for column in columns)
        return child_begin, code, items, running

    def live(self, items: range, excluded: set[int]) -> list[int]:
        return [item for item in items if self.passes[item] and item not in excluded]


def bundle(levels: Sequence[PlainLevel]) -> LevelTries:
    columns = [list(column) for column in zip(*(level.tensors() for level in levels), strict=True)]
    return LevelTries.of(*columns)


def pack_excluded(excluded: Sequence[set[int]]) -> Tensor:
    width = max(map(len, excluded), default=0)
    rows = [sorted(items) + [NO_ITEM] * (width - len(items)) for items in excluded]
    return torch.tensor(rows, dtype=torch.int32).view(len(excluded), width)
