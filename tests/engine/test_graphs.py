"""Graphs in the engine, by stand-ins that run their work again instead of replaying it: padding, choice, counts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, TagFilter
from engine.runtime.buckets import EXCLUDED, page_buckets, request_buckets, round_up, token_buckets, width_buckets
from engine.runtime.graph_plan import prefill_shapes, search_shapes
from engine.runtime.graphs import CudaCapture, SearchGraph
from engine.runtime.lane import Lane
from engine.runtime.plan import BatchLimits
from engine.runtime.prefill_input import PrefillShape
from engine.runtime.search_input import SearchShape
from engine.settings import EngineSettings
from tests.engine.test_recall_engine import (
    ITEMS,
    MODEL,
    assert_pool_is_whole,
    assert_same,
    catalog,
    engine_on,
    request,
    result,
)
from tests.engine.tiny_models import write_model


def run_again(work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Like a capture: the output lies in the same memory after every replay."""
    output = work().clone()

    def replay() -> None:
        output.copy_(work())

    return replay, output


@torch.inference_mode()
def with_graphs(engine: RecallEngine, prefills: list[PrefillShape], searches: list[SearchShape]) -> RecallEngine:
    hidden = torch.zeros(4, engine.spec.decoder.hidden_size)
    engine._executor.capture(prefills, searches, hidden, run_again, run_again)  # noqa: SLF001
    return engine


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(MODEL, tmp_path_factory.mktemp("model"))


PREFILLS = [PrefillShape(tokens, 4, 8) for tokens in (64, 512)]
SEARCHES = [
    SearchShape(requests, (width,) * 3, width, 8, 32, vocab)
    for requests in (1, 4)
    for width in (16, 40)
    for vocab in (False, True)
]


def mixed_requests() -> list[RecallRequest]:
    random = np.random.default_rng(8)
    policies = (BeamPolicy((8, 16, 16)), BeamPolicy((3, 40, 20)), BeamPolicy((8, 30, 30), margin=2.0, min_width=12))
    return [
        request(
            beam=policies[number % 3],
            history=random.integers(0, ITEMS, int(random.integers(0, 60))),
            score=("level", "vocab", "legal", "level")[number % 4],
            filter=TagFilter(all=("even",)) if number % 3 == 1 else None,
            exclude=random.integers(0, ITEMS, int(random.integers(0, 30))),
            max_items_per_sid=1 if number % 5 == 2 else None,
            catalog="v2" if number % 2 else None,
        )
        for number in range(14)
    ]


def test_padded_runs_answer_as_exact_ones_do_for_mixed_lengths_widths_filters_and_versions(directory: Path) -> None:
    plain = engine_on(directory, max_batch=4, context_pages=32)
    graphed = with_graphs(engine_on(directory, max_batch=4, context_pages=32), PREFILLS, SEARCHES)
    for engine in (plain, graphed):
        engine.catalogs.stage(catalog("v2"))
    for ours, theirs in zip(graphed.recall(mixed_requests()), plain.recall(mixed_requests()), strict=True):
        assert_same(ours, theirs)
        assert result(ours).beam_widths == result(theirs).beam_widths
    stats = graphed.stats()
    assert stats["graphs"] == len(PREFILLS) + len(SEARCHES)
    assert stats["graph_prefills"] == stats["graph_searches"] == 4
    assert stats["eager_prefills"] == stats["eager_searches"] == 0
    tokens = sum(result(answer).context_tokens for answer in graphed.recall(mixed_requests()))
    assert graphed.stats()["prefill_tokens"] == 2 * tokens
    assert graphed.stats()["search_rows"] == plain.stats()["search_rows"] * 2
    assert graphed.stats()["search_rows_padded"] > 2 * plain.stats()["search_rows_padded"] > 0
    assert plain.stats()["prefill_tokens_padded"] == 0
    assert_pool_is_whole(graphed)


def test_a_version_staged_after_the_capture_is_served_from_the_same_graphs(directory: Path) -> None:
    engine = with_graphs(engine_on(directory), PREFILLS, SEARCHES)
    engine.recall([request()])
    engine.catalogs.stage(catalog("v2"))
    engine.catalogs.activate("v2")
    assert result(engine.recall([request()])[0]).catalog == "v2"
    assert engine.stats()["graph_searches"] == 2
    assert engine.stats()["eager_searches"] == 0


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"beam": BeamPolicy((8, 41, 10))}, 1),
        ({"exclude": np.arange(33)}, 1),
        ({"history": None, "tokens": np.ones(1100, dtype=np.int32)}, 1),
        ({}, 5),
    ],
    ids=["beam", "exclusions", "context", "requests"],
)
def test_what_no_graph_holds_runs_eagerly_and_is_counted(directory: Path, changes: dict[str, Any], count: int) -> None:
    engine = with_graphs(engine_on(directory, context_pages=32), PREFILLS, SEARCHES)
    answers = engine.recall([request(**changes)] * count)
    (alone,) = engine_on(directory, context_pages=32).recall([request(**changes)])
    for answer in answers:
        assert_same(answer, alone)
    assert engine.stats()["eager_searches"] == 1


def test_the_smallest_graph_that_holds_a_batch_is_taken(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_graphs(engine_on(directory), PREFILLS, SEARCHES)
    ran: list[SearchShape] = []
    run = SearchGraph.run

    def spy(graph: SearchGraph, *args: Any) -> Tensor:
        ran.append(graph.shape)
        return run(graph, *args)

    monkeypatch.setattr(SearchGraph, "run", spy)
    engine.recall([request()])
    engine.recall([request(beam=BeamPolicy((8, 17, 10)))] * 3)
    assert ran == [SearchShape(1, (16,) * 3, 16, 8, 32, vocab=False), SearchShape(4, (40,) * 3, 40, 8, 32, vocab=False)]


def test_lack_of_memory_ends_the_capture_and_not_the_engine(directory: Path) -> None:
    engine = engine_on(directory)
    captured = 0

    def capture(work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        nonlocal captured
        captured += 1
        if captured > 3:
            raise torch.OutOfMemoryError("no memory")
        return run_again(work)

    hidden = torch.zeros(4, engine.spec.decoder.hidden_size)
    with torch.inference_mode():
        engine._executor.capture(PREFILLS, SEARCHES, hidden, capture, capture)  # noqa: SLF001
    assert engine.stats()["graphs"] == 3
    for answer, alone in zip(
        engine.recall(mixed_requests()[::2]), engine_on(directory).recall(mixed_requests()[::2]), strict=True
    ):
        assert_same(answer, alone)


def test_lack_of_memory_shows_through_the_error_of_a_broken_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken(*_: object, **__: object) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise RuntimeError("the capture was invalidated")  # noqa: B904  (as the real one: by context only)

    monkeypatch.setattr(torch.cuda, "graph", broken)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    runs = iter((torch.zeros(1), torch.OutOfMemoryError("no memory")))

    def work() -> Tensor:
        done = next(runs)
        if isinstance(done, Exception):
            raise done
        return done

    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        CudaCapture(Lane(torch.device("cpu")))(work)


@given(st.integers(1, 100_000))
def test_buckets_cover_up_to_the_largest_and_waste_little(most: int) -> None:
    for buckets in (request_buckets(most), width_buckets(most), page_buckets(most), tuple(token_buckets(most))):
        assert list(buckets) == sorted(set(buckets))
        assert buckets[-1] == most
        assert round_up(buckets, most) == most
        assert round_up(buckets, most + 1) == most + 1
    tokens = [*token_buckets(most)]
    assert all(b - a <= max(128, a // 8) for a, b in pairwise(tokens))
    assert len(tokens) < 34 + 8 * max(0, most // 4096).bit_length()


def test_a_switched_off_prefill_has_no_buckets() -> None:
    assert list(token_buckets(0)) == []


def test_the_cheapest_graphs_are_captured_and_no_more_than_allowed() -> None:
    settings = EngineSettings(model=Path("unused"), max_batch=8, max_graphs=50, graph_beams=((20, 300, 900), (1, 2)))
    limits = BatchLimits.of(settings, 1000)
    prefills = prefill_shapes(settings, 40_000)
    assert [shape.tokens for shape in prefills] == list(token_buckets(settings.graph_prefill_tokens))
    assert all((shape.requests, shape.pages) == (8, 313) for shape in prefills)
    shapes = search_shapes(settings, limits, 3, 40_000, len(prefills))
    assert len(prefills) + len(shapes) == 50
    every = search_shapes(settings.model_copy(update={"max_graphs": 10_000}), limits, 3, 40_000, 0)
    assert len(set(every)) == len(every)
    assert shapes == every[: len(shapes)]
    assert SearchShape(1, (20, 300, 900), 900, 20, EXCLUDED, vocab=False) in every
    assert not any(shape.vocab or shape.requests * max(shape.widths) > settings.max_batch_rows for shape in every)
    with_vocab = search_shapes(
        settings.model_copy(update={"max_graphs": 10_000, "graph_vocab": True}), limits, 3, 40_000, 0
    )
    assert len(with_vocab) == 2 * len(every)


def test_the_widest_beam_must_fit_a_batch() -> None:
    with pytest.raises(ValidationError, match="max_width must not be above max_batch_rows"):
        EngineSettings(model=Path("unused"), max_width=1000, max_batch_rows=999)
