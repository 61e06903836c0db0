"""What judges the engine's answers on a device is itself right, and fails where it should."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.engine_run import random_catalog, results
from benchmarks.exactness import SMALL, Exactness, judge, overlap, same_bits, score_difference, share_of
from benchmarks.reference import Beams, ReferenceDecoder, search
from engine.reference import oracle_recall
from engine.request import RecallResult

CPU = torch.device("cpu")
WIDTH = 6


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exactness:
    catalog = random_catalog(SMALL.name, (SMALL.codes,) * SMALL.levels, 300)
    return Exactness(SMALL, catalog, WIDTH, (12, 17), tmp_path_factory.mktemp("small"), CPU)


@pytest.fixture(scope="module")
def answer(small: Exactness) -> RecallResult:
    return results(small.engine("fp32").recall(small.requests))[0]


@pytest.fixture(scope="module")
def beams(small: Exactness) -> Beams:
    return small.references(rounded=False)[0]


def test_the_reference_search_is_the_oracles(small: Exactness, beams: Beams) -> None:
    oracle = oracle_recall(small.model, small.catalog, small.requests[0])
    exact = beams.exact.nonzero()[:, 0]
    assert [tuple(codes) for codes in beams.codes[exact].tolist()] == list(oracle.sids)
    np.testing.assert_allclose(beams.scores[exact].numpy(), oracle.scores, atol=1e-9)


def test_an_exact_answer_is_right(answer: RecallResult, beams: Beams) -> None:
    found = judge(answer, beams)
    assert found["right"]
    assert found["same"]
    assert found["largest_difference"] < 1e-4


def test_answers_that_are_not_exact_are_told(answer: RecallResult, beams: Beams) -> None:
    assert answer.sids is not None
    moved = replace(answer, scores=answer.scores + np.float32(1e-3))
    turned = replace(answer, sids=answer.sids[::-1].copy(), scores=answer.scores[::-1].copy())
    short = replace(answer, sids=answer.sids[1:], scores=answer.scores[1:])
    strange = replace(answer, sids=(answer.sids + 1) % SMALL.codes)
    for wrong in (moved, turned, short, strange):
        assert not judge(wrong, beams)["right"]


def test_the_rounded_reference_is_near_the_exact_one(small: Exactness, answer: RecallResult) -> None:
    rounded = small.references(rounded=True)[0]
    shares = overlap(answer, rounded)
    assert shares["all"] > 0.5
    assert 0 < shares["largest_difference"] < 0.2


def test_a_search_read_to_a_coarse_epsilon_may_have_more_beams(small: Exactness, beams: Beams) -> None:
    decoder = ReferenceDecoder(small.model, CPU)
    tokens = small.requests[0].tokens
    assert tokens is not None
    coarse = search(decoder, small.catalog.trie, tokens, (WIDTH,) * SMALL.levels, epsilon=0.5)
    assert len(coarse.nodes) > len(beams.nodes) >= WIDTH
    assert int(coarse.certain.sum()) < int(beams.certain.sum()) == WIDTH


def test_answers_are_compared_bit_for_bit(answer: RecallResult) -> None:
    other = replace(answer, scores=np.nextafter(answer.scores, np.float32(0), dtype=np.float32))
    assert share_of([answer, answer], [answer, other], same_bits) == 0.5
    assert 0 < score_difference(answer, other) < 1e-5


def test_requests_alone_and_together_are_looked_at(small: Exactness) -> None:
    row = small.alone_and_together("fp32")
    assert row["batch_items_as_alone"] == row["turned_items_as_batch"] == 1.0
    assert row["largest_difference"] < 1e-4
