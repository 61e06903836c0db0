"""``vocab`` mode is the beam search of Hugging Face with a prefix constraint."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.reference import Item
from engine.request import BeamPolicy, RecallRequest, RecallResult
from tests.engine.equality import EPSILON
from tests.engine.pairing import Pairing
from tests.engine.test_oracle_itself import ARCHITECTURES
from tests.engine.tiny_models import Architecture, TinyModel


def generate(
    model_dir: Path, bases: Sequence[int], sids: Sequence[tuple[int, ...]], prompt: Sequence[int], width: int
) -> list[tuple[tuple[int, ...], float]]:
    """SIDs and scores of ``transformers`` generate, best first: no length penalty, no end token."""
    from transformers import AutoModelForCausalLM

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
    found = out.sequences[:, len(prompt) :] - torch.tensor(list(bases))
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
    random = np.random.default_rng(6)
    chosen = random.choice(4000, 1500, replace=False)
    items = [
        Item(id_, sid)
        for id_, sid in enumerate(zip(*map(np.ndarray.tolist, np.unravel_index(chosen, model.sizes)), strict=True))
    ]
    prompt = random.integers(0, model.vocab, 20).astype(np.int32)
    request = RecallRequest(BeamPolicy((16, 16, 16)), 16, tokens=prompt, score="vocab", return_sids=True)
    (answer,) = pairing.compare(model, items, [request])
    theirs = generate(
        pairing.engine(model).settings.model, model.token_bases, [item.sid for item in items], prompt.tolist(), 16
    )
    assert_same(answer, theirs)
