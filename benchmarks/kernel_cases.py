"""Inputs of the kernel benchmark: random contexts in shuffled pages, random item tries, all made on the device."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from kernels.selection.tries import NO_ITEM, LevelTries

PAGE = 128
CODES = 8192


@dataclass(frozen=True)
class DecodeCase:
    """Arguments of ``beam_decode_attention`` but the scale."""

    q: Tensor
    k_pages: Tensor
    v_pages: Tensor
    page_table: Tensor
    context_len: Tensor
    own_k: Tensor
    own_v: Tensor
    path: Tensor
    width: Tensor

    @classmethod
    def of(cls, lengths: list[int], beams: int, steps: int = 2, heads: int = 8, group: int = 2, dim: int = 128,
           dtype: torch.dtype = torch.bfloat16) -> "DecodeCase":  # fmt: skip
        requests = len(lengths)
        table, pages = page_table(lengths)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, device="cuda", dtype=dtype)

        return cls(
            q=random(requests, beams, heads * group, dim),
            k_pages=random(pages, heads, PAGE, dim),
            v_pages=random(pages, heads, PAGE, dim),
            page_table=table,
            context_len=torch.tensor(lengths, dtype=torch.int32, device="cuda"),
            own_k=random(steps, requests, beams, heads, dim),
            own_v=random(steps, requests, beams, heads, dim),
            path=torch.randint(0, beams, (steps, requests, beams), dtype=torch.int32, device="cuda"),
            width=torch.full((requests,), beams, dtype=torch.int32, device="cuda"),
        )

    def inputs(self) -> dict[str, Any]:
        """By the names of the parameters."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def page_table(lengths: list[int]) -> tuple[Tensor, int]:
    """Shuffled pages for contexts of these lengths: the table ``[R, max_pages]`` and the size of the pool."""
    longest = max(-(-n // PAGE) for n in lengths)
    pages = longest * len(lengths)
    order = torch.randperm(pages, device="cuda").to(torch.int32)
    return order.view(len(lengths), longest), pages


@dataclass(frozen=True)
class DeviceTrie:
    """A three-level trie, one item a leaf; ``levels[l]``: child_begin, code, item_begin of the children."""

    levels: tuple[tuple[Tensor, Tensor, Tensor], ...]
    items: int

    def live(self, share: float = 1.0) -> Tensor:
        """Running count of a random share of the items."""
        passes = torch.rand(self.items + 1, device="cuda") < share
        passes[0] = False
        return passes.cumsum(0).to(torch.int32)

    def tries(self, level: int, live: Tensor, requests: int) -> LevelTries:
        child_begin, code, item_begin = self.levels[level]
        return LevelTries.of([child_begin] * requests, [code] * requests, [item_begin] * requests, [live] * requests)


def uniform_trie(items: int) -> DeviceTrie:
    keys = torch.randint(0, CODES**3, (items,), device="cuda")
    return _trie(keys)


def skewed_trie(items: int) -> DeviceTrie:
    """256 first codes, half of them with a single leaf; at both lower levels a node with its whole codebook below."""
    first = torch.randint(0, 128, (items,), device="cuda")
    lower = torch.randint(0, CODES**2, (items,), device="cuda")
    codes = torch.arange(CODES, device="cuda")
    single = torch.arange(128, 256, device="cuda") * CODES**2 + 7
    wide = torch.cat([5 * CODES**2 + codes * CODES, 5 * CODES**2 + 9 * CODES + codes])
    return _trie(torch.cat([first * CODES**2 + lower, single, wide]))


def full_trie() -> DeviceTrie:
    """Every continuation legal: the unconstrained search. The third level reuses the second's arrays."""
    root = torch.arange(CODES + 1, device="cuda", dtype=torch.int32)
    begin = torch.arange(0, CODES * CODES + 1, CODES, device="cuda", dtype=torch.int32)
    code = torch.arange(CODES, device="cuda", dtype=torch.int32)
    every = torch.arange(CODES * CODES + 1, device="cuda", dtype=torch.int32)
    second = (begin, code.repeat(CODES), every)
    first = (torch.tensor([0, CODES], device="cuda", dtype=torch.int32), code, (root * CODES).to(torch.int32))
    return DeviceTrie((first, second, second), CODES * CODES)


def _trie(keys: Tensor) -> DeviceTrie:
    leaves = keys.unique()
    prefixes = [torch.zeros(1, dtype=torch.int64, device="cuda")]
    prefixes += [(leaves // CODES ** (2 - level)).unique_consecutive() for level in range(3)]
    levels = []
    for level in range(3):
        child_begin = torch.searchsorted(prefixes[level + 1], _bounds(prefixes[level], CODES)).to(torch.int32)
        item_begin = torch.searchsorted(leaves, _bounds(prefixes[level + 1], CODES ** (2 - level))).to(torch.int32)
        levels.append((child_begin, (prefixes[level + 1] % CODES).to(torch.int32), item_begin))
    return DeviceTrie(tuple(levels), len(leaves))


def _bounds(prefixes: Tensor, span: int) -> Tensor:
    """Smallest key below each prefix, and one above the last's largest."""
    return torch.cat([prefixes * span, (prefixes[-1:] + 1) * span])


def no_exclusions(requests: int) -> Tensor:
    return torch.full((requests, 1), NO_ITEM, dtype=torch.int32, device="cuda")


@dataclass(frozen=True)
class PrefillCase:
    """Arguments of ``paged_prefill_attention`` but the scale: contexts of which the last ``new`` tokens are queries."""

    q: Tensor
    k_pages: Tensor
    v_pages: Tensor
    page_table: Tensor
    query_begin: Tensor
    context_len: Tensor

    @classmethod
    def of(
        cls, lengths: list[int], new: list[int], heads: int = 8, group: int = 2, dim: int = 128,
        dtype: torch.dtype = torch.bfloat16,
    ) -> "PrefillCase":  # fmt: skip
        table, pages = page_table(lengths)
        begin = torch.tensor([0, *new], device="cuda").cumsum(0).to(torch.int32)
        shape = (pages, heads, PAGE, dim)
        return cls(
            q=torch.randn(sum(new), heads * group, dim, device="cuda", dtype=dtype),
            k_pages=torch.randn(shape, device="cuda", dtype=dtype),
            v_pages=torch.randn(shape, device="cuda", dtype=dtype),
            page_table=table,
            query_begin=begin,
            context_len=torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        )

    def inputs(self) -> dict[str, Any]:
        """By the names of the parameters."""
        return {each.name: getattr(self, each.name) for each in fields(self)}
