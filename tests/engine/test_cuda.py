"""The same engine on a CUDA device, through the Triton kernels and through the torch twins."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.recall_engine import RecallEngine
from engine.reference import Item
from engine.request import BeamPolicy, RecallRequest, RecallResult, Score, TagFilter
from engine.settings import EngineSettings
from kernels import backend
from tests.engine.strategies import catalog_of
from tests.engine.test_recall_engine import request
from tests.engine.tiny_models import Architecture, TinyModel, write_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TWINNED = (
    "beam_decode_attention",
    "expand_select",
    "paged_prefill_attention",
    "qk_norm_rope_write",
    "resolve_leaves",
    "rms_norm",
    "silu_mul",
)
SCORES: tuple[Score, ...] = ("level", "vocab", "legal")


def model_of(architecture: Architecture) -> TinyModel:
    return TinyModel(
        (40, 16, 16), architecture, layers=3, heads=8, kv_heads=4, head_dim=32, hidden=256, max_history_items=400
    )


def items_of(model: TinyModel) -> tuple[Item, ...]:
    random = np.random.default_rng(2)
    return tuple(
        Item(
            id=number,
            sid=tuple(int(random.integers(size)) for size in model.sizes),
            tags=frozenset({"even"} if number % 2 == 0 else ()),
            recallable=number % 7 != 0,
        )
        for number in range(5000)
    )


def requests_of() -> list[RecallRequest]:
    """Mixed lengths, widths, policies, modes, filters and exclusions."""
    random = np.random.default_rng(4)
    policies = (
        BeamPolicy((64, 64, 64)),
        BeamPolicy((8, 200, 100)),
        BeamPolicy((40, 128, 64), margin=3.0, min_width=20),
    )
    return [
        request(
            beam=policies[number % 3],
            top_k=20,
            history=random.integers(0, 5000, int(random.integers(0, 390))),
            score=SCORES[number % 3 if number % 2 else 0],
            filter=TagFilter(all=("even",)) if number % 4 == 1 else None,
            exclude_history=number % 4 == 2,
            max_items_per_sid=1 if number % 5 == 3 else None,
        )
        for number in range(12)
    ]


def answers_of(directory: Path, model: TinyModel, **settings: Any) -> list[RecallResult]:
    engine = RecallEngine(EngineSettings(**({"model": directory, "context_pages": 256} | settings)))
    engine.catalogs.stage(catalog_of(model.name, model.sizes, items_of(model)))
    engine.catalogs.activate("v1")
    answers = [answer for answer in engine.recall(requests_of()) if isinstance(answer, RecallResult)]
    assert len(answers) == 12
    assert engine.stats()["context_leases"] == 0
    return answers


@pytest.fixture(params=["triton", "twins"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "twins":
        for name in TWINNED:
            monkeypatch.setattr(backend, name, getattr(backend, name).__wrapped__)
    return str(request.param)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
@pytest.mark.usefixtures("kernels")
def test_float32_on_the_device_answers_as_the_cpu_does(architecture: Architecture, tmp_path: Path) -> None:
    model = model_of(architecture)
    directory = write_model(model, tmp_path)
    expected = answers_of(directory, model, device="cpu")
    found = answers_of(directory, model, device="cuda", dtype="float32")
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.beam_widths == theirs.beam_widths
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4)
        apart = np.flatnonzero(np.asarray(ours.items) != np.asarray(theirs.items))
        gaps = np.abs(np.diff(theirs.scores, prepend=np.inf, append=-np.inf))
        assert all(min(gaps[place], gaps[place + 1]) < 1e-4 for place in apart)


@pytest.mark.usefixtures("kernels")
def test_bfloat16_on_the_device_finds_most_of_the_same_items(tmp_path: Path) -> None:
    model = model_of("qwen3")
    directory = write_model(model, tmp_path)
    expected = answers_of(directory, model, device="cpu")
    found = answers_of(directory, model, device="cuda", dtype="bfloat16")
    shared = [len(set(ours.items) & set(theirs.items)) / 20 for ours, theirs in zip(found, expected, strict=True)]
    assert np.mean(shared) > 0.8
