"""Leaves to items, against a plain loop."""

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from kernels.selection.tries import NO_ITEM, LevelTries
from kernels.selection.triton_resolve import resolve_leaves
from tests.kernels.device import CUDA_FLOAT32, INTERPRETER


@pytest.mark.parametrize(
    "device", [pytest.param(p.values[0], id=p.id, marks=p.marks) for p in (INTERPRETER, CUDA_FLOAT32)]
)
@pytest.mark.parametrize("seed", range(4))
def test_items_of_the_leaves_in_order_without_the_excluded(device: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    requests, leaves, out_items = 3, 30, 21
    item_begin = [np.concatenate([[0], np.cumsum(rng.integers(1, 1 + [1, 3, 65][r], leaves))]) for r in range(requests)]
    passes = [rng.random(begin[-1]) < share for begin, share in zip(item_begin, (1.0, 0.3, 0.8), strict=True)]
    excluded = np.full((requests, 6), NO_ITEM)
    for r in range(requests):
        chosen = rng.permutation(np.flatnonzero(passes[r]))[: 2 * r]
        excluded[r, : len(chosen)] = np.sort(chosen)
    nodes = np.stack([rng.permutation(leaves)[:9] for _ in range(requests)])
    width, most, top_k = np.array([9, 0 if seed == 1 else 9, 4]), np.array([2, 1, 40]), np.array([5, 21, 20])

    def ints(values: ArrayLike) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    begins, live = [ints(x) for x in item_begin], [ints(np.concatenate([[0], np.cumsum(x)])) for x in passes]
    tries = LevelTries.of(begins, begins, begins, live)
    found = resolve_leaves(ints(nodes), ints(width), tries, ints(excluded), ints(most), ints(top_k), out_items)

    for r in range(requests):
        expected = []
        for b in range(width[r]):
            items = range(item_begin[r][nodes[r, b]], item_begin[r][nodes[r, b] + 1])
            passed = [i for i in items if passes[r][i] and i not in excluded[r]]
            expected += [(i, b) for i in passed[: most[r]]]
        expected = expected[: top_k[r]]
        assert found.found[r] == len(expected)
        padding = [0] * (out_items - len(expected))
        assert found.items[r].tolist() == [i for i, _ in expected] + padding
        assert found.beams[r].tolist() == [b for _, b in expected] + padding
