"""Catalogs and requests where beam searches break, each held against the oracle."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.reference import Item
from engine.request import BeamPolicy, RecallRequest, TagFilter
from tests.engine.pairing import Pairing, check, engine_on, serve
from tests.engine.strategies import SCORES, items_at, random_leaves
from tests.engine.tiny_models import TinyModel

PROMPT = np.array([1, 3, 5, 7, 2], dtype=np.int32)


def ask(*widths: int, top_k: int | None = None, **fields: Any) -> RecallRequest:
    return RecallRequest(BeamPolicy(widths), top_k or widths[-1], tokens=PROMPT, **fields)


def in_all_modes(*widths: int, **fields: Any) -> list[RecallRequest]:
    return [ask(*widths, score=score, **fields) for score in SCORES]


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Collecting garbage among a million plain objects takes longer than the test."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("without_collection")
def test_width_256_over_a_million_leaves(pairing: Pairing) -> None:
    sizes = (128, 1024, 64)
    items = items_at(random_leaves(sizes, 1_000_000))
    (answer,) = pairing.compare(TinyModel(sizes), items, [ask(256, 256, 256)])
    assert answer.beam_widths == (128, 256, 256)


@pytest.mark.parametrize("sizes", [(40,), (6, 5, 4, 5, 6)])
def test_one_level_and_five(pairing: Pairing, sizes: tuple[int, ...]) -> None:
    items = items_at(random_leaves(sizes, min(500, int(np.prod(sizes)))))
    for width in (1, 7, 64):
        pairing.compare(TinyModel(sizes), items, in_all_modes(*(width,) * len(sizes)))


def test_a_node_with_its_whole_codebook_below_it_beside_255_with_one_child(pairing: Pairing) -> None:
    heir = np.stack([np.full(8192, 17), np.arange(8192)], axis=1)
    others = np.array([[code, (code * 37) % 8192] for code in range(256) if code != 17])
    answers = pairing.compare(
        TinyModel((256, 8192)), items_at(np.concatenate([heir, others])), in_all_modes(256, 256, return_sids=True)
    )
    level = answers[0].sids
    assert level is not None
    assert (level[:, 0] == 17).sum() > 100, "one parent must be able to fill the beam"


def test_a_codebook_of_20000_codes(pairing: Pairing) -> None:
    sids = random_leaves((20_000, 3), 30_000)
    answers = pairing.compare(TinyModel((20_000, 3)), items_at(sids), in_all_modes(256, 256))
    assert all(answer.beam_widths == (256, 256) for answer in answers)


TWO_ON_ONE_LEAF = (
    Item(1, (0, 0), tags=frozenset("a")),
    Item(2, (0, 0), tags=frozenset("b")),
    Item(3, (1, 1), tags=frozenset("ab")),
    Item(4, (2, 0)),
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {1, 2, 3, 4}),
        ({"filter": TagFilter(all=("a", "b"))}, {3}),
        ({"filter": TagFilter(all=("a",))}, {1, 3}),
        ({"filter": TagFilter(none=("a",))}, {2, 4}),
        ({"filter": TagFilter(any=("a",), none=("b",))}, {1}),
        ({"filter": TagFilter(any=("b", "a"), all=("b",))}, {2, 3}),
        ({"filter": TagFilter(all=("b",)), "exclude": np.array([2])}, {3}),
        ({"filter": TagFilter(all=("b",)), "exclude": np.array([1])}, {2, 3}),
        ({"filter": TagFilter(none=("a", "b")), "exclude": np.array([4])}, set()),
        ({"exclude": np.array([1, 2])}, {3, 4}),
        ({"exclude": np.array([2, 2, 99])}, {1, 3, 4}),
    ],
)
def test_two_items_on_one_leaf_are_judged_apart(pairing: Pairing, fields: dict[str, Any], expected: set[int]) -> None:
    for width in (1, 5):
        answers = pairing.compare(TinyModel((3, 2)), TWO_ON_ONE_LEAF, in_all_modes(5, width, **fields))
    for answer in answers:
        assert set(answer.items) == expected


def test_an_excluded_item_takes_no_beam(pairing: Pairing) -> None:
    items = items_at(np.arange(9)[:, None])
    (best,) = pairing.compare(TinyModel((9,)), items, [ask(1)])
    (second,) = pairing.compare(TinyModel((9,)), items, [ask(1, exclude=np.asarray(best.items))])
    assert len(second.items) == 1
    assert second.items[0] != best.items[0]


@pytest.mark.parametrize("most", [None, 1, 64, 65])
def test_65_items_on_one_leaf(pairing: Pairing, most: int | None) -> None:
    crowd = [Item(id_, (1, 1), rank=id_ % 3) for id_ in range(65)]
    items = [*crowd, Item(100, (0, 1)), Item(101, (1, 0))]
    taken = np.array([0, 1, 2, 30, 64])
    requests = [ask(4, 80, top_k=top_k, max_items_per_sid=most) for top_k in (1, 40, 66, 67, 80)]
    requests += [ask(4, 80, max_items_per_sid=most, exclude=taken)]
    answers = pairing.compare(TinyModel((2, 2)), items, requests)
    assert len(answers[4].items) == min(most or 65, 65) + 2
    assert not set(taken) & set(answers[5].items)


def test_a_first_level_smaller_than_the_width(pairing: Pairing) -> None:
    items = items_at(random_leaves((3, 50, 50), 400))
    for answer in pairing.compare(TinyModel((3, 50, 50)), items, in_all_modes(100, 100, 100)):
        assert answer.beam_widths == (3, 100, 100)


def test_a_beam_wider_than_the_catalog_gives_all_of_it(pairing: Pairing) -> None:
    items = items_at(random_leaves((10, 10), 60))
    for answer in pairing.compare(TinyModel((10, 10)), items, in_all_modes(70, 70)):
        assert sorted(answer.items) == list(range(60))
        assert answer.exhausted


def test_a_request_with_one_legal_item_beside_one_with_many(pairing: Pairing) -> None:
    lone = Item(-1, (3, 3, 3), tags=frozenset({"lone"}))
    items = [lone, *items_at(random_leaves((20, 20, 20), 5000))]
    wide = ask(200, 200, 200)
    narrow = ask(200, 200, 200, filter=TagFilter(all=("lone",)))
    answers = pairing.compare(TinyModel((20, 20, 20)), items, [wide, narrow, wide, ask(1, 1, 1)])
    assert [len(answer.items) for answer in answers] == [200, 1, 200, 1]
    assert answers[1].beam_widths == (1, 1, 1)


def test_a_user_twice_in_a_batch_has_the_same_answer_twice(pairing: Pairing) -> None:
    items = items_at(random_leaves((9, 9, 9), 300))
    history = RecallRequest(BeamPolicy((20, 20, 20)), 20, history=np.arange(10), exclude_history=True)
    first, _, second = pairing.compare(TinyModel((9, 9, 9)), items, [history, ask(50, 50, 50), history])
    assert list(first.items) == list(second.items)
    assert not set(first.items) & set(range(10))


@pytest.mark.parametrize("length", [1, 127, 128, 129, 257, 400])
def test_contexts_around_the_pages(pairing: Pairing, length: int) -> None:
    items = items_at(random_leaves((9, 9, 9), 300))
    tokens = np.random.default_rng(length).integers(0, 40, length).astype(np.int32)
    long = RecallRequest(BeamPolicy((4, 4, 4)), 4, tokens=tokens)
    pairing.compare(TinyModel((9, 9, 9)), items, [long, ask(4, 4, 4), long])


def test_more_requests_than_the_batch_or_the_pages_hold(pairing: Pairing) -> None:
    model = TinyModel((9, 9, 9))
    items = items_at(random_leaves(model.sizes, 300))
    random = np.random.default_rng(1)
    requests = [
        RecallRequest(
            BeamPolicy((4, 8, 4)), 4, tokens=random.integers(0, 40, length).astype(np.int32), score=SCORES[length % 3]
        )
        for length in (3, 200, 130, 1, 250, 64, 5, 129, 256, 2, 17)
    ]
    small = engine_on(pairing.engine(model).settings.model, context_pages=3, max_batch=4)
    serve(small, items, "small")
    check(small, items, requests, small.recall(requests))
    assert small.stats()["context_pages_used"] == 0


def test_a_chain_of_single_children_scores_zero_in_legal_mode_and_still_obeys_the_widths(pairing: Pairing) -> None:
    items = items_at(np.array([[code, 0, code % 2, 1] for code in range(8)]))
    model = TinyModel((8, 2, 2, 2))
    for widths in ((8, 8, 8, 8), (8, 5, 3, 2)):
        full, _ = pairing.compare(model, items, [ask(*widths, score="legal"), ask(*widths, score="level")])
        assert full.beam_widths == widths


def test_beams_as_close_as_rounding(pairing: Pairing) -> None:
    model = TinyModel((64, 64, 64), sharpness=0.01)
    pairing.compare(model, items_at(random_leaves(model.sizes, 20_000)), in_all_modes(256, 256, 256))
