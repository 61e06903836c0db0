"""A history held through events recalls what the same history sent whole recalls, with a real model."""

from pathlib import Path

import numpy as np
import pytest

from consumer.histories.items import Cap, PackedItems
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, ItemIds, RecallRequest, RecallResult
from engine.settings import EngineSettings
from tests.consumer.serve_harness import ITEMS, MODEL, make_catalog
from tests.engine.tiny_models import write_model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> RecallEngine:
    model: Path = write_model(MODEL, tmp_path_factory.mktemp("model"))
    engine = RecallEngine(EngineSettings(model=model, context_pages=64, threads=1, device="cpu"))
    engine.catalogs.stage(make_catalog(ITEMS))
    engine.catalogs.activate("v")
    return engine


def recall(engine: RecallEngine, history: ItemIds) -> RecallResult:
    (answer,) = engine.recall([RecallRequest(BeamPolicy((8, 8, 8)), 5, history=history, exclude_history=True)])
    assert isinstance(answer, RecallResult)
    return answer


def test_a_held_history_recalls_what_the_whole_one_recalls(engine: RecallEngine) -> None:
    random = np.random.default_rng(3)
    cap = Cap(engine.spec.max_history_items, engine.spec.history_drop)
    held, whole = PackedItems(), np.empty(0, np.int64)
    truncated = 0
    for _ in range(25):
        new = random.choice(np.arange(95, 160), random.integers(1, 6))  # some are unknown
        held.append(new, cap)
        whole = np.concatenate([whole, new])
        ours, expected = recall(engine, held.items()), recall(engine, whole)
        assert np.array_equal(ours.items, expected.items)
        assert np.array_equal(ours.scores, expected.scores)
        for name in ("truncated", "context_tokens", "unknown_items", "exhausted"):
            assert getattr(ours, name) == getattr(expected, name), name
        truncated += ours.truncated
    assert 0 < truncated < 25
    assert len(held) < len(whole)
