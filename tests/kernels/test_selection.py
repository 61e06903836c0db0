"""Expand, select and resolve against plain loops; ties bit for bit where arithmetic is exact."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.selection.expand_select import Selection, expand_select, selection_keys
from kernels.selection.resolve import resolve_leaves
from kernels.selection.tries import NO_ITEM
from tests.kernels.plain import PlainLevel, bundle, pack_excluded

CODES = 8


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of a selection, one entry per request."""

    levels: list[PlainLevel]
    excluded: list[set[int]]
    beams: list[int]
    keep: list[int]
    margin: list[float]
    min_width: list[int]
    nodes: Tensor
    scores: Tensor
    logits: Tensor

    def select(self, log_z: Tensor | None = None, legal: bool = False) -> Selection:
        return expand_select(
            self.logits,
            self.scores,
            self.nodes,
            int32(*self.beams),
            int32(*self.keep),
            bundle(self.levels),
            pack_excluded(self.excluded),
            log_z,
            torch.full((len(self.levels),), legal),
            torch.tensor(self.margin, dtype=torch.float32),
            int32(*self.min_width),
            max(self.keep),
        )

    def expected(self, r: int, z: str) -> list[tuple[float, int, int, int]]:
        """(score, node, parent, code) of the beams of request ``r``, best first, in float64 and plain loops."""
        found = []
        for b in range(self.beams[r]):
            row = self.logits[r, b].double().numpy()
            edges = [
                edge
                for edge in self.levels[r].children[int(self.nodes[r, b])]
                if self.levels[r].live(edge[2], self.excluded[r])
            ]
            over = {"row": row, "legal": row[[code for _, code, _ in edges]], "zero": np.zeros(1)}[z]
            norm = np.log(np.exp(over).sum()) if len(over) else 0.0
            for node, code, _ in edges:
                found.append((float(self.scores[r, b]) + row[code] - norm, node, b, code))
        found = sorted(found, key=lambda beam: (-beam[0], beam[1]))[: self.keep[r]]
        within = sum(beam[0] >= found[0][0] - self.margin[r] for beam in found)
        return found[: max(within, self.min_width[r])]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to three requests; scores and logits are small dyadic numbers, so sums are exact and ties are many."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    requests = draw(st.integers(1, 3))
    levels = [
        PlainLevel.random(draw(st.integers(1, 12)), CODES, int(random.integers(1 << 16))) for _ in range(requests)
    ]
    beams = [draw(st.integers(0, len(level.children))) for level in levels]
    nodes = torch.zeros((requests, max(1, *beams)), dtype=torch.int32)
    for row, level, count in zip(nodes, levels, beams, strict=True):
        row[:count] = torch.from_numpy(random.permutation(len(level.children))[:count].astype(np.int32))
    passing = [[item for item, passes in enumerate(level.passes) if passes] for level in levels]
    return Batch(
        levels=levels,
        excluded=[draw(st.sets(st.sampled_from(items))) if items else set() for items in passing],
        beams=beams,
        keep=[draw(st.integers(1, 20)) for _ in levels],
        margin=[draw(st.sampled_from((math.inf, 0.0, 0.25, 1.0))) for _ in levels],
        min_width=[draw(st.integers(1, 5)) for _ in levels],
        nodes=nodes,
        scores=torch.from_numpy(random.integers(-8, 1, nodes.shape).astype(np.float32) / 4),
        logits=torch.from_numpy(random.integers(-4, 5, (*nodes.shape, CODES)).astype(np.float32) / 4),
    )


@settings(deadline=None)
@given(batches())
def test_exact_scores_are_selected_in_the_total_order_bit_for_bit(batch: Batch) -> None:
    chosen = batch.select(log_z=torch.zeros_like(batch.scores))
    for r in range(len(batch.levels)):
        width = int(chosen.width[r])
        rows = zip(chosen.scores[r], chosen.nodes[r], chosen.parents[r], chosen.codes[r], strict=True)
        beams = [(float(s), int(n), int(p), int(c)) for s, n, p, c in rows]
        assert beams[:width] == batch.expected(r, "zero")
        assert all(beam == (-math.inf, 0, 0, 0) for beam in beams[width:])


@settings(deadline=None, max_examples=50)
@given(batches(), st.booleans())
def test_normalisers_are_the_row_or_its_live_children(batch: Batch, legal: bool) -> None:
    batch = replace(batch, keep=[100] * len(batch.keep), margin=[math.inf] * len(batch.margin))
    chosen = batch.select(legal=legal)
    for r in range(len(batch.levels)):
        expected = {node: score for score, node, _, _ in batch.expected(r, "legal" if legal else "row")}
        width = int(chosen.width[r])
        assert set(chosen.nodes[r, :width].tolist()) == set(expected)
        for node, score in zip(chosen.nodes[r, :width].tolist(), chosen.scores[r, :width].tolist(), strict=True):
            assert score == pytest.approx(expected[node], abs=2e-6)


@settings(deadline=None)
@given(batches())
def test_a_request_is_selected_alike_alone_and_in_a_batch(batch: Batch) -> None:
    together = batch.select()
    for r in range(len(batch.levels)):
        one = slice(r, r + 1)
        alone = Batch(
            batch.levels[one],
            batch.excluded[one],
            batch.beams[one],
            batch.keep[one],
            batch.margin[one],
            batch.min_width[one],
            batch.nodes[one],
            batch.scores[one],
            batch.logits[one],
        ).select()
        width = int(alone.width[0])
        assert int(together.width[r]) == width
        for a, b in zip(alone[:4], together[:4], strict=True):
            assert torch.equal(a[0, :width], b[r, :width])


def one_node(codes: int, logits: list[list[float]], **changes: object) -> Batch:
    """Requests at a root whose children are all the codes, one item each."""
    root = PlainLevel([[(code, code, range(code, code + 1)) for code in range(codes)]], [True] * codes)
    requests = len(logits)
    batch = Batch(
        levels=[root] * requests,
        excluded=[set()] * requests,
        beams=[1] * requests,
        keep=[codes] * requests,
        margin=[math.inf] * requests,
        min_width=[1] * requests,
        nodes=torch.zeros((requests, 1), dtype=torch.int32),
        scores=torch.zeros((requests, 1)),
        logits=torch.tensor(logits)[:, None],
    )
    return replace(batch, **changes)  # type: ignore[arg-type]  # the fields of Batch


def test_a_score_that_is_not_a_number_fails_its_own_request_only_and_stays_failed() -> None:
    batch = one_node(2, [[0.0, math.nan], [0.0, 1.0], [math.inf, 0.0]])
    chosen = batch.select()
    assert chosen.width.tolist() == [-1, 2, -1]
    assert replace(batch, beams=[-1, 1, 0]).select().width.tolist() == [-1, 2, 0]
    assert torch.isneginf(chosen.scores[0]).all()


def test_a_nan_outside_the_live_children_matters_only_where_it_is_normalised_over() -> None:
    batch = one_node(3, [[0.0, 1.0, math.nan]], excluded=[{2}])
    assert batch.select(legal=True).width.tolist() == [2]
    assert batch.select(log_z=torch.zeros((1, 1))).width.tolist() == [2]
    assert batch.select().width.tolist() == [-1]


def test_minus_infinity_is_a_score_and_ties_among_them_go_by_node() -> None:
    chosen = one_node(4, [[-math.inf, 0.0, -math.inf, -math.inf]], keep=[3]).select()
    assert chosen.nodes.tolist() == [[1, 0, 2]]
    assert chosen.scores.tolist() == [[0.0, -math.inf, -math.inf]]


def test_a_beam_on_the_margin_stays_and_min_width_holds_what_exists() -> None:
    zero = torch.zeros((1, 1))
    batch = one_node(4, [[0.0, -1.0, -1.25, -5.0]], margin=[1.25])
    assert batch.select(log_z=zero).width.tolist() == [3]
    assert replace(batch, min_width=[9]).select(log_z=zero).width.tolist() == [4]
    assert replace(batch, keep=[2], min_width=[9]).select(log_z=zero).width.tolist() == [2]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(width=32, allow_nan=False), st.integers(0, 2**31 - 2)), min_size=1, unique=True))
def test_keys_order_by_score_then_by_node(pairs: list[tuple[float, int]]) -> None:
    scores, nodes = (list(column) for column in zip(*pairs, strict=True))
    keys = selection_keys(torch.tensor(scores, dtype=torch.float32), torch.tensor(nodes)).tolist()
    by_key = sorted(range(len(pairs)), key=lambda i: -keys[i])
    assert [pairs[i] for i in by_key] == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))


def test_zeros_of_both_signs_tie() -> None:
    keys = selection_keys(torch.tensor([-0.0, 0.0]), torch.tensor([1, 2]))
    assert keys[0] > keys[1]


@settings(deadline=None)
@given(batches(), st.data())
def test_leaves_resolve_to_their_live_items_in_order_until_top_k(batch: Batch, data: st.DataObject) -> None:
    leaves = [sum(map(len, level.children)) for level in batch.levels]
    chosen = [data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))] for count in leaves]
    most = [data.draw(st.sampled_from((1, 2, NO_ITEM))) for _ in leaves]
    top_k = [data.draw(st.integers(1, 30)) for _ in leaves]
    nodes = torch.zeros((len(leaves), max(1, *map(len, chosen))), dtype=torch.int32)
    for row, beams in zip(nodes, chosen, strict=True):
        row[: len(beams)] = int32(*beams)
    width = int32(*map(len, chosen))
    resolved = resolve_leaves(
        nodes, width, bundle(batch.levels), pack_excluded(batch.excluded), int32(*most), int32(*top_k), max(top_k)
    )
    for r, level in enumerate(batch.levels):
        below = {node: items for edges in level.children for node, _, items in edges}
        pairs = [
            (item, beam)
            for beam, leaf in enumerate(chosen[r])
            for item in level.live(below[leaf], batch.excluded[r])[: most[r]]
        ][: top_k[r]]
        found = int(resolved.found[r])
        assert list(zip(resolved.items[r].tolist(), resolved.beams[r].tolist(), strict=True))[:found] == pairs
