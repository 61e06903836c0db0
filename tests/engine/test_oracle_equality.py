"""What the comparison with the oracle lets pass, and what it does not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.reference import Item, OracleResult
from engine.reference.prompt import Prompt
from engine.reference.search import Beams, Prefix, Search
from engine.request import BeamPolicy, RecallRequest, RecallResult
from tests.engine.equality import EPSILON, Tally, assert_equal
from tests.engine.strategies import policies

NEAR, FAR = EPSILON / 3, EPSILON * 3


class Scripted(Search):
    """A search over the prefixes of ``logp``, which gives the log-probability of the last code of each."""

    def __init__(self, policy: BeamPolicy, top_k: int, logp: dict[Prefix, float], twins: int = 1) -> None:
        self.request = RecallRequest(policy, top_k, history=[])
        self.prompt = Prompt((), (), False, 0)
        self.logp = logp
        leaves = sorted(prefix for prefix in logp if len(prefix) == len(policy.widths))
        self.leaves = {
            leaf: [Item(place * twins + twin, leaf) for twin in range(twins)] for place, leaf in enumerate(leaves)
        }

    def candidates(self, beams: Beams) -> Beams:
        scores = {
            prefix: beams[prefix[:-1]] + logp for prefix, logp in sorted(self.logp.items()) if prefix[:-1] in beams
        }
        return dict(sorted(scores.items(), key=lambda entry: -entry[1]))


def answer(oracle: OracleResult, **changes: Any) -> RecallResult:
    """What an engine would say that found the same."""
    result = RecallResult(
        items=np.array(oracle.items, dtype=np.int64),
        scores=np.array(oracle.scores, dtype=np.float32),
        model="m",
        catalog="c",
        beam_widths=oracle.beam_widths,
        exhausted=oracle.exhausted,
    )
    return replace(result, **changes)


def flat(*scores: float, policy: BeamPolicy, top_k: int = 9, twins: int = 1) -> OracleResult:
    """One level with these scores."""
    return Scripted(policy, top_k, {(code,): score for code, score in enumerate(scores)}, twins).run()


@st.composite
def close_scores(draw: st.DrawFn) -> tuple[BeamPolicy, int, dict[Prefix, float]]:
    """Searches full of candidates that are as close as rounding."""
    levels = draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    logp: dict[Prefix, float] = {}
    layer: list[Prefix] = [()]
    for _ in range(levels):
        layer = [(*prefix, code) for prefix in layer for code in range(random.integers(1, 4))]
        logp |= {prefix: -0.5 * float(random.integers(3)) + NEAR * float(random.random()) for prefix in layer}
    policy = draw(policies(levels))
    return policy, draw(st.integers(1, 12)), logp


@settings(max_examples=300, deadline=None)
@given(close_scores(), st.integers(0, 1 << 16))
def test_what_rounding_does_to_the_beams_is_excused(
    search: tuple[BeamPolicy, int, dict[Prefix, float]], seed: int
) -> None:
    policy, top_k, logp = search
    random = np.random.default_rng(seed)
    noise = 0.9 * EPSILON / 2 / len(policy.widths)
    rounded = {prefix: score + float(random.uniform(-noise, noise)) for prefix, score in logp.items()}
    engine = Scripted(policy, top_k, rounded, twins=2).run()
    assert_equal(answer(engine), Scripted(policy, top_k, logp, twins=2).run(), Tally())


def test_the_same_answer_needs_nothing() -> None:
    oracle, tally = flat(-1, -2, -3, policy=BeamPolicy((3,))), Tally()
    assert_equal(answer(oracle), oracle, tally)
    assert (tally.cases, sum(tally.needed.values())) == (1, 0)


def test_neighbours_within_epsilon_may_swap_and_are_counted() -> None:
    oracle, tally = flat(-1, -1 - NEAR, -3, policy=BeamPolicy((3,))), Tally()
    assert_equal(answer(oracle, items=np.array([1, 0, 2])), oracle, tally)
    assert tally.needed == {"order": 1}


def test_a_beam_at_the_cut_may_differ_and_is_counted() -> None:
    oracle, tally = flat(-1, -2, -2 - NEAR, policy=BeamPolicy((2,))), Tally()
    assert_equal(answer(oracle, items=np.array([0, 2])), oracle, tally)
    assert tally.needed == {"beams": 1}


BROAD = BeamPolicy((4,))
WRONG: dict[str, tuple[OracleResult, dict[str, Any]]] = {
    "a score off": (flat(-1, -2, policy=BROAD), {"scores": np.array([-1, -2 - FAR], dtype=np.float32)}),
    "swapped": (flat(-1, -1 - FAR, policy=BROAD), {"items": np.array([1, 0])}),
    "an item that is not live": (flat(-1, -2, policy=BROAD), {"items": np.array([0, 7])}),
    "an item twice": (flat(-1, -1, policy=BROAD), {"items": np.array([0, 0])}),
    "a better beam lost": (flat(-1, -2, -2 - FAR, policy=BeamPolicy((2,))), {"items": np.array([0, 2])}),
    "too few items": (
        flat(-1, -2, policy=BROAD),
        {"items": np.array([0]), "scores": np.array([-1], dtype=np.float32)},
    ),
    "fewer beams": (flat(-1, -2, -3, policy=BROAD), {"beam_widths": (2,)}),
    "more beams than the width": (flat(-1, -2, -3, policy=BeamPolicy((2,))), {"beam_widths": (3,)}),
    "beams below the margin": (flat(-1, -2, -3, policy=BeamPolicy((3,), margin=1.5)), {"beam_widths": (3,)}),
    "not exhausted": (flat(-1, -2, policy=BROAD), {"exhausted": False}),
    "twins in the wrong order": (flat(-1, -2, policy=BROAD, twins=2), {"items": np.array([1, 0, 2, 3])}),
    "twins apart": (flat(-1, -1 - NEAR, policy=BROAD, twins=2), {"items": np.array([0, 2, 1, 3])}),
    "truncated": (flat(-1, -2, policy=BROAD), {"truncated": True}),
    "unknown items": (flat(-1, -2, policy=BROAD), {"unknown_items": 1}),
    "context tokens": (flat(-1, -2, policy=BROAD), {"context_tokens": 1}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_answer_is_refused(what: str) -> None:
    oracle, changes = WRONG[what]
    with pytest.raises(AssertionError):
        assert_equal(answer(oracle, **changes), oracle, Tally())


def test_a_worse_leaf_may_not_stand_in_when_top_k_cuts() -> None:
    oracle = flat(-1, -2, -3, policy=BROAD, top_k=2)
    wrong = {"items": np.array([0, 2]), "scores": np.array([-1, -3], dtype=np.float32)}
    with pytest.raises(AssertionError, match="must be in the answer"):
        assert_equal(answer(oracle, **wrong), oracle, Tally())
