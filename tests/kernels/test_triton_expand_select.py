"""Expand and select: scores against float64, the selection bit for bit against a plain sort of the float32 scores."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from kernels.selection.expand_select import Selection
from kernels.selection.tries import NO_ITEM, LevelTries
from kernels.selection.triton_expand_select import SelectionWorkspace, expand_select
from tests.kernels.device import CUDA_FLOAT32, INTERPRETER

ON_BOTH = pytest.mark.parametrize(
    "device", [pytest.param(p.values[0], id=p.id, marks=p.marks) for p in (INTERPRETER, CUDA_FLOAT32)]
)


@dataclass(frozen=True)
class Level:
    """One trie level of one request; ``passes``: bool ``[items]``, ``excluded``: item indexes that pass."""

    child_begin: np.ndarray
    code: np.ndarray
    item_begin: np.ndarray
    passes: np.ndarray
    excluded: np.ndarray

    def is_live(self, child: int) -> bool:
        items = range(self.item_begin[child], self.item_begin[child + 1])
        return any(self.passes[i] and i not in self.excluded for i in items)


def make_level(rng: np.random.Generator, children: list[int], codes: int, passing: float, excluded: int) -> Level:
    child_begin = np.concatenate([[0], np.cumsum(children)])
    code = np.concatenate([np.sort(rng.permutation(codes)[:n]) for n in children])
    item_begin = np.concatenate([[0], np.cumsum(rng.integers(1, 4, len(code)))])
    passes = rng.random(item_begin[-1]) < passing
    chosen = rng.permutation(np.flatnonzero(passes))[:excluded]
    return Level(child_begin, code, item_begin, passes, np.sort(chosen))


@dataclass(frozen=True)
class Case:
    levels: list[Level]
    logits: Tensor
    scores: Tensor
    nodes: Tensor
    width: list[int]
    next_width: list[int]
    legal: list[bool]
    margin: list[float]
    min_width: list[int]
    log_z: Tensor | None = None

    def run(
        self, device: str, short_list: int = 64, early_end: bool = True, space: SelectionWorkspace | None = None
    ) -> tuple[Selection, Tensor]:
        """The selection and the candidates' scores ``[R, W, C]``."""

        def ints(values: ArrayLike) -> Tensor:
            return torch.tensor(np.asarray(values), dtype=torch.int32, device=device)

        requests, width, codes = self.logits.shape
        live = [np.concatenate([[0], np.cumsum(level.passes)]) for level in self.levels]
        tries = LevelTries.of(
            [ints(level.child_begin) for level in self.levels],
            [ints(level.code) for level in self.levels],
            [ints(level.item_begin) for level in self.levels],
            [ints(x) for x in live],
        )
        longest = max(len(level.excluded) for level in self.levels)
        excluded = np.full((requests, longest), NO_ITEM)
        for row, level in zip(excluded, self.levels, strict=True):
            row[: len(level.excluded)] = level.excluded
        out_width = max(self.next_width)
        space = space or SelectionWorkspace.of(requests, width, codes, out_width, torch.device(device), short_list)
        result = expand_select(
            self.logits.to(device), self.scores.to(device), self.nodes.to(device), ints(self.width),
            ints(self.next_width), tries, ints(excluded), None if self.log_z is None else self.log_z.to(device),
            torch.tensor(self.legal, device=device), torch.tensor(self.margin, device=device), ints(self.min_width),
            out_width, space, early_end,
        )  # fmt: skip
        return Selection(*(x.cpu() for x in result)), space.candidates.cpu()

    def children(self, r: int) -> list[tuple[int, int, int]]:
        """Live children of a request as (beam, place among the node's children, child)."""
        level, found = self.levels[r], []
        for b in range(self.width[r]):
            first, last = level.child_begin[int(self.nodes[r, b])], level.child_begin[int(self.nodes[r, b]) + 1]
            found += [(b, int(c - first), int(c)) for c in range(first, last) if level.is_live(c)]
        return found

    def exact_score(self, r: int, b: int, child: int) -> float:
        row = self.logits[r, b].double()
        siblings = [c for beam, _, c in self.children(r) if beam == b]
        if self.legal[r]:
            z = row[self.levels[r].code[siblings]].logsumexp(0)
        else:
            z = row.logsumexp(0) if self.log_z is None else self.log_z[r, b].double()
        return float(self.scores[r, b].double() + row[self.levels[r].code[child]] - z)


def check(case: Case, device: str, **options: Any) -> None:
    result, candidates = case.run(device, **options)
    for r in range(len(case.levels)):
        live = case.children(r)
        if live:
            b, _, child = live[len(live) // 2]
            assert candidates[r, b, live[len(live) // 2][1]] == pytest.approx(case.exact_score(r, b, child), abs=1e-4)
        scored = [(np.float32(candidates[r, b, place]), child, b) for b, place, child in live]
        order = sorted(scored, key=lambda x: (-x[0], x[1]))[: case.next_width[r]]
        within = sum(1 for score, _, _ in order if score >= np.float32(order[0][0]) - np.float32(case.margin[r]))
        order = order[: max(within, min(case.min_width[r], len(order)))]
        kept = len(order)
        assert result.width[r] == kept
        assert result.scores[r].tolist() == [float(s) for s, _, _ in order] + [-np.inf] * (max(case.next_width) - kept)
        assert result.nodes[r, :kept].tolist() == [child for _, child, _ in order]
        assert result.parents[r, :kept].tolist() == [b for _, _, b in order]
        assert result.codes[r, :kept].tolist() == [case.levels[r].code[child] for _, child, _ in order]
        for padding in (result.nodes, result.parents, result.codes):
            assert not padding[r, kept:].any()


def random_case(seed: int, width: int = 6, codes: int = 37, dyadic: bool = False) -> Case:
    rng = np.random.default_rng(seed)
    requests, nodes = 3, width + 4
    levels = [
        make_level(rng, list(rng.integers(1, min(codes, 12), nodes)), codes, passing, excluded)
        for passing, excluded in ((1.0, 0), (0.4, 3), (0.9, 9))
    ]
    logits = torch.from_numpy(rng.standard_normal((requests, width, codes), dtype=np.float32) * 3)
    if dyadic:
        logits = (logits * 2).round() / 2
    return Case(
        levels=levels,
        logits=logits,
        scores=-torch.from_numpy(rng.random((requests, width), dtype=np.float32)).sort(dim=1).values,
        nodes=torch.from_numpy(np.stack([rng.permutation(nodes)[:width] for _ in range(requests)])).int(),
        width=[width, int(rng.integers(1, width + 1)), int(rng.integers(0, width + 1))],
        next_width=[int(n) for n in rng.integers(1, 2 * width, requests)],
        legal=[bool(x) for x in rng.random(requests) < 0.4],
        margin=[float(x) for x in rng.choice([np.inf, 0.0, 0.7, 3.0], requests)],
        min_width=[int(n) for n in rng.integers(1, 4, requests)],
        log_z=torch.from_numpy(rng.random((requests, width), dtype=np.float32)) if rng.random() < 0.3 else None,
    )


def tied_case(children: list[int], codes: int, next_width: int) -> Case:
    """Every logit of every beam equal: the order is the order of the nodes."""
    rng = np.random.default_rng(0)
    width = len(children)
    return Case(
        levels=[make_level(rng, children, codes, 1.0, 2)],
        logits=torch.zeros(1, width, codes),
        scores=torch.zeros(1, width),
        nodes=torch.arange(width - 1, -1, -1, dtype=torch.int32)[None],
        width=[width],
        next_width=[next_width],
        legal=[False],
        margin=[np.inf],
        min_width=[1],
    )


@ON_BOTH
@pytest.mark.parametrize("seed", range(8))
def test_random_levels_with_filters_exclusions_modes_and_margins(device: str, seed: int) -> None:
    check(random_case(seed, dyadic=seed % 2 == 0), device)


@ON_BOTH
@pytest.mark.parametrize("children", [[40] * 12, [1] * 5 + [300], [200]])
def test_ties_that_overflow_the_short_list_are_selected_by_node(device: str, children: list[int]) -> None:
    check(tied_case(children, 300, 9), device, short_list=16)


@ON_BOTH
def test_the_bound_of_the_margin_itself_stays(device: str) -> None:
    rng = np.random.default_rng(2)
    case = replace(
        tied_case([5, 4], 5, 9),
        levels=[make_level(rng, [5, 4], 5, 1.0, 0)],
        logits=torch.tensor([[[0.0, -1.0, -1.5, -0.5, -1.0], [-1.0, -3.0, -1.25, 0.0, -0.75]]]),
        log_z=torch.zeros(1, 2),
        margin=[1.0],
    )
    check(case, device)
    assert case.run(device)[0].scores[0].min() == -torch.inf
    assert (case.run(device)[0].scores[0] == -1.0).any()


@ON_BOTH
def test_overflow_with_scores_that_differ(device: str) -> None:
    case = random_case(3, width=8)
    wide = replace(case, margin=[np.inf] * 3, log_z=None, next_width=[4, 4, 4], scores=case.scores * 1e-3)
    check(replace(wide, logits=case.logits * 1e-4), device, short_list=1)


@ON_BOTH
def test_one_node_with_its_whole_codebook_beside_single_children(device: str) -> None:
    rng = np.random.default_rng(5)
    children = [1, 1, 2500, 1]
    case = Case(
        levels=[make_level(rng, children, 2500, 0.5, 40)],
        logits=torch.from_numpy(rng.standard_normal((1, 4, 2500), dtype=np.float32)),
        scores=torch.tensor([[0.0, -0.5, -1.0, -1.5]]),
        nodes=torch.tensor([[3, 2, 0, 1]], dtype=torch.int32),
        width=[4],
        next_width=[30],
        legal=[False],
        margin=[np.inf],
        min_width=[1],
    )
    check(case, device, short_list=512)


@ON_BOTH
def test_root_with_a_codebook_of_twenty_thousand(device: str) -> None:
    rng = np.random.default_rng(6)
    case = Case(
        levels=[make_level(rng, [3000], 20000, 0.5, 5)],
        logits=torch.from_numpy(rng.standard_normal((1, 1, 20000), dtype=np.float32)),
        scores=torch.zeros(1, 1),
        nodes=torch.zeros(1, 1, dtype=torch.int32),
        width=[1],
        next_width=[20],
        legal=[False],
        margin=[np.inf],
        min_width=[1],
    )
    check(case, device)


@ON_BOTH
def test_early_end_and_a_used_workspace_change_nothing(device: str) -> None:
    space = SelectionWorkspace.of(3, 6, 37, 12, torch.device(device), 64)
    for seed in range(3):
        case = replace(random_case(seed), next_width=[12, 5, 1])
        expected, _ = case.run(device, early_end=False)
        for early_end in (True, False):
            actual, _ = case.run(device, early_end=early_end, space=space)
            assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@ON_BOTH
def test_minus_infinity_is_a_score_and_nan_marks_only_its_request(device: str) -> None:
    case = replace(
        random_case(1), log_z=None, legal=[False] * 3, width=[6, 6, -1], margin=[np.inf] * 3, next_width=[9, 9, 9]
    )
    logits = case.logits.clone()
    logits[0, 0, 5:] = -torch.inf
    logits[1, 2, 0] = torch.nan
    result, _ = replace(case, logits=logits).run(device)
    assert result.width.tolist()[1:] == [-1, -1]
    for r in (1, 2):
        assert torch.isneginf(result.scores[r]).all()
        assert not result.nodes[r].any()
    check(replace(case, logits=logits[:1], levels=case.levels[:1]), device)
