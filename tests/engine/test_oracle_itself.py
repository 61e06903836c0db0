"""The oracle against what is not ours: transformers' forward in float64, plain enumeration, and cases done by hand."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.reference import Item, items_of, oracle_recall
from engine.reference.decoder import Array, Decoder, log_softmax
from engine.reference.items import live_items, passes
from engine.reference.prompt import newest
from engine.reference.search import Beams, Prefix, Search
from engine.request import BeamPolicy, RecallRequest, Score, TagFilter
from tests.engine.strategies import SCORES, catalog_of
from tests.engine.tiny_models import Architecture, TinyModel, write_model

ARCHITECTURES: tuple[Architecture, ...] = ("qwen3", "qwen2", "llama")


@lru_cache(maxsize=1)
def transformers_model(model_dir: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float64, attn_implementation="eager"
    )
    return model


def transformers_logits(model_dir: Path, tokens: list[int]) -> Array:
    """``[length, vocab]`` of Hugging Face's own forward in float64."""
    with torch.no_grad():
        return np.asarray(transformers_model(model_dir)(torch.tensor([tokens])).logits[0].numpy())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_forward_is_that_of_transformers(architecture: Architecture, tied: bool, tmp_path: Path) -> None:
    model = TinyModel((5, 7, 3), architecture, seed=1, tied=tied)
    write_model(model, tmp_path)
    tokens = np.random.default_rng(0).integers(0, model.vocab, 150).tolist()
    theirs = transformers_logits(tmp_path, tokens)
    decoder = Decoder(tmp_path)
    for length in (1, 2, 37, 150):
        ours = decoder.logits(np.array([tokens[:length]]))[0]
        # their rotary angles are float32 in any case
        np.testing.assert_allclose(ours, theirs[length - 1], atol=2e-5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_wide_search_is_the_enumeration_of_all_leaves(
    architecture: Architecture, score: Score, tmp_path: Path
) -> None:
    model = TinyModel((4, 3, 5), architecture, seed=2)
    write_model(model, tmp_path)
    random = np.random.default_rng(3)
    sids = sorted({tuple(map(int, random.integers(0, model.sizes))) for _ in range(25)})
    items = [Item(id_, sid) for id_, sid in enumerate(sids)]
    request = RecallRequest(
        BeamPolicy((60, 60, 60)), top_k=60, tokens=np.array([1, 17, 2], dtype=np.int32), score=score
    )

    def total(sid: Prefix) -> float:
        tokens = [1, 17, 2, *(base + code for base, code in zip(model.token_bases, sid, strict=True))]
        logits = transformers_logits(tmp_path, tokens)[2:-1]
        steps = []
        for level, code in enumerate(sid):
            base, size = model.token_bases[level], model.sizes[level]
            row = logits[level]
            alive = sorted({other[level] for other in sids if other[:level] == sid[:level]})
            if score == "vocab":
                steps.append(log_softmax(row)[base + code])
            elif score == "level":
                steps.append(log_softmax(row[base : base + size])[code])
            else:
                steps.append(log_softmax(row[[base + other for other in alive]])[alive.index(code)])
        return float(sum(steps))

    totals = {id_: total(sid) for id_, sid in enumerate(sids)}
    result = oracle_recall(tmp_path, items, request)
    assert list(result.items) == sorted(totals, key=lambda id_: -totals[id_])
    np.testing.assert_allclose(result.scores, sorted(totals.values(), reverse=True), atol=1e-4)
    assert result.exhausted
    assert result.beam_widths == (len({sid[:1] for sid in sids}), len({sid[:2] for sid in sids}), len(sids))


@given(st.integers(0, 50), st.integers(1, 10), st.integers(1, 10))
def test_a_history_over_the_cap_loses_whole_blocks_of_its_oldest(length: int, cap: int, drop: int) -> None:
    history = list(range(length))
    drop = min(drop, cap)
    left = list(newest(history, cap, drop))
    gone = length - len(left)
    assert left == history[gone:]
    assert gone % drop == 0
    assert len(left) <= cap
    assert gone == 0 or len(left) + drop > cap


def test_one_event_more_keeps_the_start_of_the_history_until_a_block_goes() -> None:
    assert [newest(range(length), 10, 4)[0] for length in range(9, 20)] == [0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12]


def test_a_filter_is_judged_on_each_item_of_a_leaf() -> None:
    one, two = Item(1, (0,), tags=frozenset("a")), Item(2, (0,), tags=frozenset("b"))
    assert not any(passes(item, TagFilter(all=("a", "b"))) for item in (one, two))
    assert [passes(item, TagFilter(none=("a",))) for item in (one, two)] == [False, True]
    assert [passes(item, TagFilter(any=("a", "c"))) for item in (one, two)] == [True, False]
    assert all(passes(item, TagFilter()) for item in (one, two))


def test_items_stand_by_sid_then_rank_then_id() -> None:
    items = [
        Item(9, (1, 0)),
        Item(8, (0, 1), rank=1),
        Item(7, (0, 1), rank=2),
        Item(6, (0, 1), rank=1),
        Item(5, (0, 0)),
    ]
    request = RecallRequest(BeamPolicy((1, 1)), top_k=1, history=[])
    assert [item.id for item in live_items(items, request, {5})] == [6, 8, 7, 9]


def test_the_items_of_a_built_catalog_are_those_it_was_built_from() -> None:
    model = TinyModel((3, 4))
    items = (
        Item(4, (2, 1), rank=0, tags=frozenset("a"), recallable=False),
        Item(3, (2, 1), rank=1, tags=frozenset("ab")),
        Item(9, (0, 3), rank=0),
    )
    assert items_of(catalog_of(model.name, model.sizes, items)) == [items[2], items[0], items[1]]


class Given(Search):
    """A search whose candidates' scores are given, to see what the policy makes of them."""

    def __init__(self, policy: BeamPolicy) -> None:
        self.request = RecallRequest(policy, top_k=1)


@pytest.mark.parametrize(
    ("policy", "width"),
    [
        (BeamPolicy((3,)), 3),
        (BeamPolicy((9,)), 5),
        (BeamPolicy((9,), margin=1.0), 3),
        (BeamPolicy((2,), margin=1.0), 2),
        (BeamPolicy((9,), margin=0.0), 2),
        (BeamPolicy((9,), margin=0.0, min_width=4), 4),
        (BeamPolicy((3,), margin=0.0, min_width=4), 3),
        (BeamPolicy((9,), margin=0.0, min_width=40), 5),
    ],
)
def test_the_margin_follows_the_width_and_keeps_its_bound(policy: BeamPolicy, width: int) -> None:
    candidates: Beams = {(3,): -1.0, (7,): -1.0, (1,): -2.0, (0,): -2.25, (2,): -9.0}
    assert Given(policy).width_after(0, candidates) == width


@settings(max_examples=50)
@given(st.integers(0, 10_000))
def test_equal_scores_stand_in_sid_order(seed: int) -> None:
    class Flat(Search):
        def _logits(self, prefixes: Iterable[Prefix]) -> Array:
            return np.zeros((len(list(prefixes)), 99))

    random = np.random.default_rng(seed)
    search = object.__new__(Flat)
    search.request = RecallRequest(BeamPolicy((9, 9)), top_k=1, score="vocab")
    search.sid = type("Same", (), {"token": staticmethod(lambda level, code: code)})()
    search.children = {(a,): [(a, int(b)) for b in random.permutation(5)] for a in random.permutation(4).tolist()}
    found = search.candidates({(a,): -1.0 for a in random.permutation(4).tolist()})
    assert list(found) == sorted(found)
