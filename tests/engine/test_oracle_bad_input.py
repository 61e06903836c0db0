"""Requests, models and catalogs that cannot be served: a typed error each, and the neighbours are answered."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import CatalogError, ModelError, RequestError
from engine.reference import Item, oracle_recall
from engine.request import BeamPolicy, RecallRequest, RecallResult, TagFilter
from tests.engine.equality import assert_equal
from tests.engine.pairing import Pairing, check, engine_on, serve
from tests.engine.strategies import SCORES, catalog_of
from tests.engine.tiny_models import TinyModel, weights_of, write_model

MODEL = TinyModel((6, 5, 4))
ITEMS = tuple(
    Item(100 * a + 10 * b + c, (a, b, c), tags=frozenset({f"first {a}", f"second {b}"}))
    for a in range(6)
    for b in range(5)
    for c in range(0, 4, 1 + b % 2)
)
GOOD = RecallRequest(BeamPolicy((8, 8, 8)), 8, history=np.array([0, 111, 530]))
NAN_TOKEN, INF_CODE = 12, 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a beam of 0": ({"beam": BeamPolicy((8, 0, 8))}, "bad_request"),
    "a negative beam": ({"beam": BeamPolicy((8, 8, -1))}, "bad_request"),
    "a beam above the maximum": ({"beam": BeamPolicy((8, 1025, 8))}, "bad_request"),
    "too few widths": ({"beam": BeamPolicy((8, 8))}, "bad_request"),
    "too many widths": ({"beam": BeamPolicy((8, 8, 8, 8))}, "bad_request"),
    "top_k above the width": ({"top_k": 9}, "bad_request"),
    "top_k of 0": ({"top_k": 0}, "bad_request"),
    "a negative margin": ({"beam": BeamPolicy((8, 8, 8), margin=-1.0)}, "bad_request"),
    "a margin that is not a number": ({"beam": BeamPolicy((8, 8, 8), margin=float("nan"))}, "bad_request"),
    "a token outside the vocabulary": ({"history": None, "tokens": np.array([1, MODEL.vocab])}, "bad_request"),
    "a negative token": ({"history": None, "tokens": np.array([-1, 1])}, "bad_request"),
    "no tokens": ({"history": None, "tokens": np.array([], dtype=np.int32)}, "bad_request"),
    "history and tokens": ({"tokens": np.array([1], dtype=np.int32)}, "bad_request"),
    "exclude_history with tokens": (
        {"history": None, "tokens": np.array([1], dtype=np.int32), "exclude_history": True},
        "bad_request",
    ),
    "an unknown template": ({"template": "nowhere"}, "bad_request"),
    "a slot without a value": ({"template": "framed", "context": {"hour": 3}}, "bad_request"),
    "a slot's unknown value": ({"template": "framed", "context": {"hour": "noon", "region": "north"}}, "bad_request"),
    "an empty prompt": ({"template": "bare", "history": np.array([99_999])}, "bad_request"),
    "too many tokens": ({"history": None, "tokens": np.ones(64 * 128 + 1, dtype=np.int32)}, "too_large"),
    "ids of the wrong kind": ({"history": ["a", "b"]}, "bad_request"),
    "excluded ids of the wrong kind": ({"exclude": ["a", "b"]}, "bad_request"),
    "an unknown field": ({"return_fields": ("price",)}, "bad_request"),
    "an unknown catalog": ({"catalog": "yesterday's"}, "unknown_catalog"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_request_is_refused_and_its_neighbours_are_answered(pairing: Pairing, what: str) -> None:
    changes, code = REFUSED[what]
    with pairing.serving(MODEL, ITEMS) as engine:
        first, refused, last = engine.recall([GOOD, replace(GOOD, **changes), replace(GOOD, score="legal")])
        assert isinstance(refused, RequestError), refused
        assert refused.code == code
        check(engine, ITEMS, [GOOD, replace(GOOD, score="legal")], [first, last])


def test_every_request_of_a_batch_may_be_bad(pairing: Pairing) -> None:
    with pairing.serving(MODEL, ITEMS) as engine:
        answers = engine.recall([replace(GOOD, **changes) for changes, _ in REFUSED.values()])
    assert [answer.code for answer in answers if isinstance(answer, RequestError)] == [c for _, c in REFUSED.values()]


def test_without_a_catalog_every_request_says_so(pairing: Pairing) -> None:
    (answer,) = pairing.engine_with(MODEL).recall([GOOD])
    assert isinstance(answer, RequestError)
    assert answer.code == "no_catalog"


@pytest.mark.parametrize("score", SCORES)
def test_a_filter_that_leaves_nothing_gives_no_items_and_no_beams(pairing: Pairing, score: Any) -> None:
    nothing = replace(GOOD, filter=TagFilter(all=("nobody's",)), score=score, return_sids=True)
    everything_out = replace(GOOD, exclude=np.array([item.id for item in ITEMS]), score=score)
    answers = pairing.compare(MODEL, ITEMS, [GOOD, nothing, everything_out, GOOD])
    for answer in answers[1:3]:
        assert len(answer.items) == 0
        assert answer.beam_widths == (0, 0, 0)
        assert answer.exhausted


def test_a_prefix_without_live_items_takes_no_beam(pairing: Pairing) -> None:
    only = TagFilter(any=("first 1", "first 4"), none=("second 0", "second 2", "second 3", "second 4"))
    answers = pairing.compare(MODEL, ITEMS, [replace(GOOD, filter=only, score=score) for score in SCORES])
    for answer in answers:
        assert answer.beam_widths == (2, 2, 4)
        assert set(answer.items) == {110, 112, 410, 412}


def test_logits_that_are_not_numbers_are_an_error_of_that_request_alone(pairing: Pairing) -> None:
    weights = weights_of(MODEL)
    weights["model.embed_tokens.weight"][NAN_TOKEN] = np.nan
    bad = replace(GOOD, history=None, tokens=np.array([1, NAN_TOKEN, 2], dtype=np.int32))
    with pairing.serving(MODEL, ITEMS, pairing.engine_with(MODEL, weights)) as engine:
        first, refused, last = engine.recall([GOOD, bad, replace(GOOD, score="legal")])
        assert isinstance(refused, RequestError)
        assert refused.code == "internal"
        check(engine, ITEMS, [GOOD, replace(GOOD, score="legal")], [first, last])
        with pytest.raises(RequestError, match="not numbers"):
            oracle_recall(engine.settings.model, ITEMS, bad)
        short = [replace(GOOD, history=None, tokens=np.array([1], dtype=np.int32))] * 4
        check(engine, ITEMS, short, engine.recall(short))  # on the pages that the bad one has left


@pytest.mark.parametrize("score", SCORES)
def test_a_code_of_probability_zero_comes_last(pairing: Pairing, score: Any) -> None:
    weights = weights_of(MODEL)
    # The first coordinate of every state is positive and no layer changes it: the head's -inf meets no zero.
    weights["model.embed_tokens.weight"][:, 0] = 1.0
    weights["model.norm.weight"][0] = 1.0
    for name, matrix in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            matrix[0] = 0.0
    weights["lm_head.weight"][MODEL.token_bases[1] + INF_CODE, 0] = -np.inf
    wide = replace(GOOD, beam=BeamPolicy((6, 30, 120)), top_k=120, score=score)
    with pairing.serving(MODEL, ITEMS, pairing.engine_with(MODEL, weights)) as engine:
        (answer, narrow) = engine.recall([wide, replace(GOOD, score=score)])
        check(engine, ITEMS, [wide, replace(GOOD, score=score)], [answer, narrow])
    assert isinstance(answer, RecallResult)
    improbable = {item.id for item in ITEMS if item.sid[1] == INF_CODE}
    assert set(answer.items) == {item.id for item in ITEMS}
    assert set(answer.items[-len(improbable) :]) == improbable
    assert np.isneginf(answer.scores[-len(improbable) :]).all()


def test_an_empty_history_is_the_prompt_without_events(pairing: Pairing) -> None:
    none = np.array([], dtype=np.int64)
    (answer,) = pairing.compare(MODEL, ITEMS, [replace(GOOD, history=none, exclude_history=True)])
    assert answer.context_tokens == 2


def test_a_history_over_the_cap_is_cut_and_unknown_items_are_counted(pairing: Pairing) -> None:
    history = np.array([9_999] * 11 + [item.id for item in ITEMS[:8]] + [9_999])
    (answer,) = pairing.compare(MODEL, ITEMS, [replace(GOOD, history=history, exclude_history=True)])
    assert answer.truncated
    assert answer.unknown_items == 2
    assert not set(answer.items) & set(history.tolist())


def test_two_catalogs_in_one_batch(pairing: Pairing) -> None:
    engine = pairing.engine_with(MODEL)
    halves = {"even": ITEMS[::2], "odd": ITEMS[1::2]}
    for version, items in halves.items():
        serve(engine, items, version)
    asked = [replace(GOOD, catalog=version) for version in ("even", "odd", None, "even")]
    for request, answer in zip(asked, engine.recall(asked), strict=True):
        version = request.catalog or "odd"
        assert assert_equal(answer, oracle_recall(engine.settings.model, halves[version], request)).catalog == version


@pytest.mark.parametrize("file", ["config.json", "sid.json", "model.safetensors"])
def test_a_missing_model_file_is_named(tmp_path: Path, file: str) -> None:
    (write_model(MODEL, tmp_path) / file).unlink()
    with pytest.raises(ModelError, match=file.removeprefix("model.")):
        engine_on(tmp_path)


@pytest.mark.parametrize("sizes", [(6, 5), (6, 5, 4, 3), (6, 5, 5), (5, 6, 4)])
def test_a_catalog_of_other_levels_is_refused_and_the_old_one_serves(pairing: Pairing, sizes: tuple[int, ...]) -> None:
    with pairing.serving(MODEL, ITEMS) as engine:
        served = engine.catalogs.active
        with pytest.raises(CatalogError):
            engine.catalogs.stage(catalog_of(MODEL.name, sizes, [Item(1, (0,) * len(sizes))], "other"))
        assert engine.catalogs.active == served
        check(engine, ITEMS, [GOOD], engine.recall([GOOD]))


def test_a_catalog_of_another_model_is_refused(pairing: Pairing) -> None:
    with pairing.serving(MODEL, ITEMS) as engine, pytest.raises(CatalogError, match="model"):
        engine.catalogs.stage(catalog_of("other", MODEL.sizes, ITEMS, "other"))
