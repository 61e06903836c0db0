"""The same engine on a CUDA device, through the Triton kernels and through the torch twins."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import RequestError
from engine.recall_engine import RecallEngine
from engine.reference import Item
from engine.request import BeamPolicy, RecallRequest, RecallResult, Score, TagFilter
from engine.settings import EngineSettings
from kernels import backend
from tests.engine.pairing import check
from tests.engine.strategies import catalog_of
from tests.engine.test_recall_engine import request
from tests.engine.tiny_models import Architecture, TinyModel, write_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TWINNED = (
    "beam_decode_attention",
    "beam_decode_attention_fp8",
    "expand_select",
    "gated_product",
    "log_sum_exp",
    "paged_prefill_attention",
    "qk_norm_rope_write",
    "quantise",
    "resolve_leaves",
    "rms_norm",
    "rms_norm_fp8",
    "silu_mul",
    "silu_mul_fp8",
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


def engine_of(directory: Path, model: TinyModel, **settings: Any) -> RecallEngine:
    engine = RecallEngine(EngineSettings(**({"model": directory, "context_pages": 256, "max_width": 200} | settings)))
    engine.catalogs.stage(catalog_of(model.name, model.sizes, items_of(model)))
    engine.catalogs.activate("v1")
    return engine


def recall(engine: RecallEngine, requests: Sequence[RecallRequest]) -> list[RecallResult]:
    answers = [answer for answer in engine.recall(requests) if isinstance(answer, RecallResult)]
    assert len(answers) == len(requests)
    assert engine.stats()["context_leases"] == 0
    return answers


def answers_of(directory: Path, model: TinyModel, **settings: Any) -> list[RecallResult]:
    return recall(engine_of(directory, model, **settings), requests_of())


def assert_alike(found: Sequence[RecallResult], expected: Sequence[RecallResult]) -> None:
    """Items stand in the same order but where scores are too close to tell."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.beam_widths == theirs.beam_widths
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4)
        apart = np.flatnonzero(np.asarray(ours.items) != np.asarray(theirs.items))
        gaps = np.abs(np.diff(theirs.scores, prepend=np.inf, append=-np.inf))
        assert all(min(gaps[place], gaps[place + 1]) < 1e-4 for place in apart)


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
    found = answers_of(directory, model, device="cuda", precision="fp32")
    assert_alike(found, expected)


@pytest.mark.usefixtures("kernels")
def test_bfloat16_on_the_device_finds_most_of_the_same_items(tmp_path: Path) -> None:
    model = model_of("qwen3")
    directory = write_model(model, tmp_path)
    expected = answers_of(directory, model, device="cpu")
    found = answers_of(directory, model, device="cuda", precision="bf16")
    shared = [len(set(ours.items) & set(theirs.items)) / 20 for ours, theirs in zip(found, expected, strict=True)]
    assert np.mean(shared) > 0.8


GRAPHED = {
    "device": "cuda",
    "precision": "fp32",
    "max_batch": 4,
    "graph_vocab": True,
    "graph_prefill_tokens": 8192,
}


def test_the_device_answers_as_the_oracle_does(tmp_path: Path) -> None:
    model = TinyModel((40, 16, 16), layers=2, heads=4, kv_heads=2, head_dim=16, hidden=64)
    items = items_of(model)[:400]
    engine = RecallEngine(EngineSettings(model=write_model(model, tmp_path), context_pages=64, max_width=64, **GRAPHED))
    engine.warm_up()
    engine.catalogs.stage(catalog_of(model.name, model.sizes, items))
    engine.catalogs.activate("v1")
    random = np.random.default_rng(6)
    requests = [
        request(
            beam=(BeamPolicy((20, 40, 30)), BeamPolicy((9, 64, 64), margin=4.0, min_width=15))[number % 2],
            top_k=15,
            history=random.integers(0, 400, int(random.integers(0, 12))),
            score=SCORES[number % 3],
            filter=TagFilter(all=("even",)) if number % 4 == 1 else None,
            exclude_history=number % 4 == 2,
        )
        for number in range(8)
    ]
    check(engine, items, requests, engine.recall(requests))
    assert engine.stats()["eager_searches"] == engine.stats()["eager_prefills"] == 0


def test_graphs_answer_as_eager_runs_do_and_none_is_captured_after_the_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("qwen3")
    directory = write_model(model, tmp_path)
    eager = engine_of(directory, model, **GRAPHED)
    graphed = engine_of(directory, model, **GRAPHED)
    graphed.warm_up()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a capture after the warm-up")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", refuse)
    assert_alike(recall(graphed, requests_of()), recall(eager, requests_of()))
    few = items_of(model)[::3]
    for engine in (eager, graphed):  # a fresh version, served beside the old one
        engine.catalogs.stage(catalog_of(model.name, model.sizes, few, "v2"))
    mixed = [replace(each, catalog="v2" if number % 2 else None) for number, each in enumerate(requests_of())]
    assert_alike(recall(graphed, mixed), recall(eager, mixed))
    stats = graphed.stats()
    assert stats["eager_searches"] == stats["eager_prefills"] == 0
    assert eager.stats()["graph_searches"] == 0


def test_batches_in_flight_do_not_disturb_each_other(tmp_path: Path) -> None:
    model = model_of("qwen3")
    engine = engine_of(write_model(model, tmp_path), model, **GRAPHED)
    engine.warm_up()
    requests = requests_of()
    alone = [recall(engine, [each])[0] for each in requests]
    running = [engine.submit([each]) for each in requests]
    together = [answer for each in running for answer in each.collect()]
    assert_alike([answer for answer in together if isinstance(answer, RecallResult)], alone)
    assert engine.stats()["context_leases"] == 0


@pytest.mark.parametrize(
    "elsewhere", [{}, {"context_pages": 44, "sessions_host_bytes": 1 << 28}], ids=["device", "host"]
)
def test_resident_contexts_answer_as_cold_ones_do_from_graphs_and_with_batches_in_flight(
    tmp_path: Path, elsewhere: dict[str, int]
) -> None:
    model = model_of("qwen3")
    directory = write_model(model, tmp_path)
    warm, cold = engine_of(directory, model, **GRAPHED, **elsewhere), engine_of(directory, model, **GRAPHED, sessions=0)
    warm.warm_up()
    random = np.random.default_rng(9)
    histories = [random.integers(0, 5000, 390) for _ in range(8)]
    for events in (300, 301, 340, 200, 390):
        asked = [request(history=each[:events], top_k=16, session=str(u)) for u, each in enumerate(histories)]
        asked = [asked[place] for place in random.permutation(8)]
        running = [warm.submit(asked[:3]), warm.submit(asked[3:])]
        found = [answer for each in running for answer in each.collect()]
        assert_alike([answer for answer in found if isinstance(answer, RecallResult)], recall(cold, asked))
    stats = warm.stats()
    assert stats["session_hits"] + stats.get("host_session_hits", 0) >= 24
    assert not elsewhere or stats["host_session_hits"] > 5
    assert stats["context_leases"] == stats["context_leases_leaked"] == 0
    warm.forget("3")
    torch.cuda.synchronize()
    assert elsewhere or warm.stats()["sessions"] == 7


def test_a_context_of_nan_harms_none_that_gets_its_pages_later(tmp_path: Path) -> None:
    """With the kernels for Hopper, where there is one: they multiply what lies past the end of a context by zero."""
    model = TinyModel((40, 16, 16), layers=3, heads=4, kv_heads=2, head_dim=128, hidden=256)
    engine = engine_of(write_model(model, tmp_path), model, device="cuda", precision="bf16", context_pages=8)
    tokens = np.random.default_rng(3).integers(1, model.token_bases[0], 1000, dtype=np.int32)
    clean = request(history=None, tokens=tokens[:300])
    before = recall(engine, [clean])[0]
    engine._executor._stages.decoder._weights.embedding[0] = torch.nan  # noqa: SLF001
    (refused,) = engine.recall([request(history=None, tokens=np.concatenate([[0], tokens]).astype(np.int32))])
    assert isinstance(refused, RequestError)
    assert refused.code == "internal"
    after = recall(engine, [clean])[0]
    assert np.array_equal(before.items, after.items)
    assert np.array_equal(before.scores, after.scores)
