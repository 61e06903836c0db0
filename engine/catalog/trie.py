"""The item trie as flat arrays (compressed sparse rows, breadth-first)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Trie:
    """A prefix trie over SIDs with ``levels`` codes each; level 0 is the root, level ``levels`` holds the leaves.

    A node's index at its level is the lexicographic rank of its prefix. All arrays are int32:

    - ``code[l]``, ``[nodes(l + 1)]``: code of the edge into each node of level ``l + 1``,
      for ``l`` in ``0 .. levels - 1``
    - ``child_begin[l]``, ``[nodes(l) + 1]``: first child (a node of level ``l + 1``) of each node of level ``l``,
      for ``l`` in ``0 .. levels - 1``
    - ``item_begin[l]``, ``[nodes(l) + 1]``: first item (in leaf order) below each node of level ``l``,
      for ``l`` in ``0 .. levels``
    - ``sizes``: codebook size of each level
    """

    sizes: tuple[int, ...]
    code: tuple[IntArray, ...]
    child_begin: tuple[IntArray, ...]
    item_begin: tuple[IntArray, ...]

    @classmethod
    def of(cls, sids: NDArray[np.integer], sizes: tuple[int, ...]) -> "Trie":
        """The trie over ``sids`` ``[items, levels]``, which stand in lexicographic order."""
        made = trie_tensors(torch.from_numpy(sids.T.astype(np.int32)))
        return cls(sizes, *(tuple(tensor.numpy() for tensor in tensors) for tensors in made))

    @property
    def levels(self) -> int:
        return len(self.sizes)

    @property
    def leaves(self) -> int:
        return len(self.code[-1])

    @property
    def items(self) -> int:
        return int(self.item_begin[0][-1])


class TrieTensors(NamedTuple):
    """The arrays of ``Trie`` as int32 tensors."""

    code: tuple[Tensor, ...]
    child_begin: tuple[Tensor, ...]
    item_begin: tuple[Tensor, ...]


def trie_tensors(sids: Tensor) -> TrieTensors:
    """The trie over ``sids`` int32 ``[levels, items]``, items in lexicographic order, on their device."""
    items = sids.shape[1]
    code, child_begin = [], []
    item_begin = [torch.tensor([0, items], dtype=torch.int32, device=sids.device)]
    first = torch.zeros(items, dtype=torch.bool, device=sids.device)  # the item is the first below its node
    first[0] = True
    starts = torch.zeros(1, dtype=torch.int64, device=sids.device)
    for codes in sids:
        first[1:] |= codes[1:] != codes[:-1]
        node = first.cumsum(0, dtype=torch.int32)  # of each item, counted from 1
        child_begin.append(torch.cat([node[starts] - 1, node[-1:]]))
        starts = first.nonzero().squeeze(1)
        code.append(codes[starts])
        item_begin.append(torch.cat([starts.int(), item_begin[0][1:]]))
    return TrieTensors(tuple(code), tuple(child_begin), tuple(item_begin))
