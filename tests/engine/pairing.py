"""The engine and the oracle on the same tiny model, catalog and requests."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from engine.recall_engine import Answer, RecallEngine
from engine.reference import Item, oracle_recall
from engine.request import RecallRequest, RecallResult
from engine.settings import EngineSettings
from tests.engine.equality import assert_equal
from tests.engine.strategies import catalog_of
from tests.engine.tiny_models import TinyModel, Weights, write_model


def engine_on(model_dir: Path, **settings: Any) -> RecallEngine:
    """An engine on the CPU in float32; one thread, since such small products only wait for a second one."""
    small = {"device": "cpu", "precision": "fp32", "context_pages": 64, "threads": 1}
    return RecallEngine(EngineSettings.model_validate({"model": model_dir, **small, **settings}))


def serve(engine: RecallEngine, items: Sequence[Item], version: str) -> None:
    """Make these items the engine's active catalog."""
    engine.catalogs.stage(catalog_of(engine.spec.id, engine.spec.level_sizes, items, version))
    engine.catalogs.activate(version)


class Pairing:
    """Writes each model and loads its engine once; every catalog becomes a version of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._engines: dict[TinyModel, RecallEngine] = {}
        self._names = count()

    def engine(self, model: TinyModel) -> RecallEngine:
        if model not in self._engines:
            self._engines[model] = self.engine_with(model)
        return self._engines[model]

    def engine_with(self, model: TinyModel, weights: Weights | None = None) -> RecallEngine:
        """An engine of its own, with other weights than the model's where given."""
        return engine_on(write_model(model, self._root / f"{model.name}-{next(self._names)}", weights))

    @contextmanager
    def serving(
        self, model: TinyModel, items: Sequence[Item], engine: RecallEngine | None = None
    ) -> Iterator[RecallEngine]:
        """The engine with these items as its active catalog."""
        engine = engine or self.engine(model)
        version = f"v{next(self._names)}"
        serve(engine, items, version)
        yield engine

    def compare(self, model: TinyModel, items: Sequence[Item], requests: Sequence[RecallRequest]) -> list[RecallResult]:
        """Recall the requests as one batch and hold every answer against the oracle's."""
        with self.serving(model, items) as engine:
            return check(engine, items, requests, engine.recall(requests))


def check(
    engine: RecallEngine, items: Sequence[Item], requests: Sequence[RecallRequest], answers: Sequence[Answer]
) -> list[RecallResult]:
    """The answers, each held against the oracle's."""
    return [
        assert_equal(answer, oracle_recall(engine.settings.model, items, request))
        for request, answer in zip(requests, answers, strict=True)
    ]
