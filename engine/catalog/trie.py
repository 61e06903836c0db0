"""The item trie as flat arrays (compressed sparse rows, breadth-first)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

    @property
    def levels(self) -> int:
        return len(self.sizes)

    @property
    def leaves(self) -> int:
        return len(self.code[-1])

    @property
    def items(self) -> int:
        return int(self.item_begin[0][-1])
