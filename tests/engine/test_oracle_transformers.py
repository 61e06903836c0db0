"""``vocab`` mode is the beam search of Hugging Face with a prefix constraint."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from engine.recall_engine import RecallEngine
from engine.reference import Item
from engine.reference.prompt import Sid, build_prompt
from engine.request import BeamPolicy, RecallRequest, RecallResult
from tests.engine.equality import EPSILON
from tests.engine.pairing import Pairing, check, engine_on, serve
from tests.engine.strategies import SCORES, items_at, random_leaves
from tests.engine.test_oracle_itself import ARCHITECTURES
from tests.engine.tiny_models import Architecture, TinyModel

DEMO_MODEL = Path(__file__).parents[2] / "consumer" / "demo" / "model"


def generate(
    model_dir: Path, sids: Sequence[tuple[int, ...]], prompt: Sequence[int], width: int
) -> list[tuple[tuple[int, ...], float]]:
    """SIDs and scores of ``transformers`` generate, best first: no length penalty, no end token."""
    from transformers import AutoModelForCausalLM

    bases = [level["token_base"] for level in json.loads((model_dir / "sid.json").read_text())["levels"]]
    allowed: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for sid in sids:
        tokens = [base + code for base, code in zip(bases, sid, strict=True)]
        for level, token in enumerate(tokens):
            allowed[tuple(tokens[:level])].add(token)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    out = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
        max_new_tokens=len(bases),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        length_penalty=0.0,
        eos_token_id=None,
        pad_token_id=0,
        prefix_allowed_tokens_fn=lambda _, tokens: sorted(allowed[tuple(tokens[len(prompt) :].tolist())]),
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = out.sequences[:, len(prompt) :] - torch.tensor(bases)
    return list(zip(map(tuple, found.tolist()), out.sequences_scores.tolist(), strict=True))


def assert_same(answer: RecallResult, theirs: list[tuple[tuple[int, ...], float]]) -> None:
    """The same SIDs with the same scores, in the same order outside groups within ε."""
    assert answer.sids is not None
    ours = dict(zip(map(tuple, answer.sids.tolist()), answer.scores.tolist(), strict=True))
    assert set(ours) == {sid for sid, _ in theirs}
    for sid, score in theirs:
        assert abs(ours[sid] - score) <= EPSILON
    in_their_order = np.array([ours[sid] for sid, _ in theirs])
    assert (in_their_order <= np.minimum.accumulate(in_their_order) + EPSILON).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_vocab_mode_is_generate_on_a_random_model(pairing: Pairing, architecture: Architecture) -> None:
    model = TinyModel((40, 10, 10), architecture, seed=5)
    items = items_at(random_leaves(model.sizes, 1500))
    prompt = np.random.default_rng(6).integers(0, model.vocab, 20).astype(np.int32)
    request = RecallRequest(BeamPolicy((16, 16, 16)), 16, tokens=prompt, score="vocab", return_sids=True)
    (answer,) = pairing.compare(model, items, [request])
    theirs = generate(pairing.engine(model).settings.model, [item.sid for item in items], prompt.tolist(), 16)
    assert_same(answer, theirs)


@pytest.fixture(scope="module")
def demo_items() -> list[Item]:
    table = pq.read_table(DEMO_MODEL / "items.parquet", columns=["item_id", "sid"]).to_pydict()
    return [Item(id_, tuple(sid)) for id_, sid in zip(table["item_id"], table["sid"], strict=True)]


@pytest.fixture(scope="module")
def demo(demo_items: list[Item]) -> RecallEngine:
    engine = engine_on(DEMO_MODEL)
    serve(engine, demo_items, "demo")
    return engine


def demo_request(items: list[Item], events: int, width: int) -> RecallRequest:
    history = np.random.default_rng(events).choice([item.id for item in items], events, replace=False)
    return RecallRequest(
        BeamPolicy((width,) * len(items[0].sid)), width, history=history, score="vocab", return_sids=True
    )


@pytest.mark.parametrize("events", [0, 1, 60, 230])
def test_vocab_mode_is_generate_on_the_demo_model(demo: RecallEngine, demo_items: list[Item], events: int) -> None:
    request = demo_request(demo_items, events, 32)
    tokens = build_prompt(Sid.load(DEMO_MODEL), {item.id: item for item in demo_items}, request).tokens
    (answer,) = demo.recall([request])
    assert isinstance(answer, RecallResult)
    assert_same(answer, generate(DEMO_MODEL, [item.sid for item in demo_items], tokens, 32))


def test_the_demo_model_equals_the_oracle(demo: RecallEngine, demo_items: list[Item]) -> None:
    requests = [replace(demo_request(demo_items, events, 8), score=score) for events, score in enumerate(SCORES, 4)]
    check(demo, demo_items, requests, demo.recall(requests))
