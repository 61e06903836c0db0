"""Exact ties through the public selection interface, where arithmetic is exact: order bit for bit."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.backend import LevelTries, expand_select

NONE_EXCLUDED = torch.empty((1, 0), dtype=torch.int32)
HALVES = st.integers(-6, 6).map(lambda n: n / 2)


@dataclass(frozen=True, slots=True)
class Step:
    """One request: ``codes[n]`` are the edges below node ``n``, one item on each; the beams are some of the nodes."""

    codes: list[list[int]]
    nodes: list[int]
    scores: list[float]
    logits: np.ndarray
    log_z: list[float]
    width: int
    margin: float
    min_width: int


@st.composite
def steps(draw: st.DrawFn) -> Step:
    codebook = draw(st.integers(1, 9))
    edges = st.sets(st.integers(0, codebook - 1), min_size=1).map(sorted)
    codes = draw(st.lists(edges, min_size=1, max_size=8))
    nodes = draw(st.permutations(range(len(codes))))[: draw(st.integers(1, len(codes)))]
    scores = sorted(draw(st.lists(HALVES, min_size=len(nodes), max_size=len(nodes))), reverse=True)
    shape = (len(nodes), codebook)
    logits = np.random.default_rng(draw(st.integers(0, 999))).integers(-2, 3, shape) / 2
    log_z = draw(st.lists(HALVES, min_size=len(nodes), max_size=len(nodes)))
    margin = draw(st.sampled_from((0.0, 0.5, 1.5, float("inf"))))
    return Step(codes, list(nodes), scores, logits, log_z, draw(st.integers(1, 20)), margin, draw(st.integers(1, 9)))


def by_hand(step: Step) -> list[tuple[float, int, int, int]]:
    """(score, node, parent row, code) of the next beams."""
    first = np.cumsum([0, *map(len, step.codes)]).tolist()
    found = [
        (step.scores[row] + float(step.logits[row, code]) - step.log_z[row], first[node] + place, row, code)
        for row, node in enumerate(step.nodes)
        for place, code in enumerate(step.codes[node])
    ]
    best = sorted(found, key=lambda one: (-one[0], one[1]))[: step.width]
    return [one for place, one in enumerate(best) if place < step.min_width or one[0] >= best[0][0] - step.margin]


def by_selection(step: Step) -> list[tuple[float, int, int, int]]:
    def column(values: object, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    edges = [code for codes in step.codes for code in codes]
    tries = LevelTries.of(
        [column(np.cumsum([0, *map(len, step.codes)]))],
        [column(edges)],
        [column(range(len(edges) + 1))],
        [column(range(len(edges) + 1))],
    )
    chosen = expand_select(
        column(step.logits, torch.float32)[None],
        column([step.scores], torch.float32),
        column([step.nodes]),
        column([len(step.nodes)]),
        column([step.width]),
        tries,
        NONE_EXCLUDED,
        column([step.log_z], torch.float32),
        torch.tensor([False]),
        column([step.margin], torch.float32),
        column([step.min_width]),
        step.width,
    )
    width = int(chosen.width[0])
    columns = (chosen.scores, chosen.nodes, chosen.parents, chosen.codes)
    return list(zip(*(tensor[0, :width].tolist() for tensor in columns), strict=True))


@settings(max_examples=300, deadline=None)
@given(steps())
def test_ties_stand_in_node_order_and_the_margin_keeps_its_bound(step: Step) -> None:
    assert by_selection(step) == by_hand(step)


def test_a_tie_at_the_cut_goes_to_the_lower_node() -> None:
    flat = Step([[0, 1, 2], [0, 1, 2]], [1, 0], [0.0, 0.0], np.zeros((2, 3)), [1.0, 1.0], 4, float("inf"), 1)
    assert by_selection(flat) == [(-1.0, 0, 1, 0), (-1.0, 1, 1, 1), (-1.0, 2, 1, 2), (-1.0, 3, 0, 0)]
