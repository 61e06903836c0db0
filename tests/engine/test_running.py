"""Calls under way: two batches on the device, whose errors and pages are their own."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.errors import DeviceError, RequestError
from engine.recall_engine import RecallEngine, Running
from engine.request import RecallRequest, RecallResult
from engine.runtime import pipeline
from engine.runtime.answers import answers_of
from engine.runtime.lane import Lane, Mark
from engine.runtime.pipeline import _device_errors
from engine.runtime.prefill_input import PrefillShape
from engine.runtime.search_input import SearchShape
from engine.runtime.stages import Stages
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


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(MODEL, tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(directory: Path) -> RecallEngine:
    return engine_on(directory)


def histories(count: int) -> list[RecallRequest]:
    return [request(history=np.arange(number, number + 9)) for number in range(count)]


def test_calls_are_collected_in_any_order(engine: RecallEngine) -> None:
    requests = histories(5)
    expected = [engine.recall([each])[0] for each in requests]
    running = [engine.submit([each]) for each in requests]
    for place in (3, 0, 4, 1, 2):
        assert running[place].done
        assert_same(running[place].collect()[0], expected[place])
    assert_pool_is_whole(engine)


@pytest.mark.parametrize("beside", [True, False])
def test_a_prefill_waits_for_the_searches_under_way_unless_it_may_run_beside_them(
    engine: RecallEngine, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    waited_for: list[Mark] = []
    first = engine.submit(histories(1))
    (flight,) = first._flights  # noqa: SLF001
    monkeypatch.setattr(Lane, "after", lambda _lane, mark: waited_for.append(mark))
    second = engine.submit(histories(1), beside=beside)
    assert (flight.marks[-1] in waited_for) is not beside
    for each in (first, second):
        each.collect()
    waited_for.clear()
    engine.submit(histories(1), beside=False).collect()
    assert flight.marks[-1] not in waited_for


def test_no_more_batches_hold_pages_than_run_at_a_time(engine: RecallEngine) -> None:
    running = [engine.submit([each]) for each in histories(4)]
    assert engine.stats()["context_leases"] == pipeline.DEPTH
    for each in running:
        each.collect()
    assert_pool_is_whole(engine)


def test_a_call_waits_for_pages_that_a_running_one_holds(directory: Path) -> None:
    engine = engine_on(directory, context_pages=2)
    long = request(history=np.arange(60))  # two pages
    first, second = engine.submit([long]), engine.submit([long])
    assert engine.stats()["context_pages_used"] == 2
    assert_same(first.collect()[0], second.collect()[0])
    assert_pool_is_whole(engine)


def test_a_version_stays_resident_until_the_calls_that_read_it_are_collected(engine: RecallEngine) -> None:
    running = engine.submit([request()])
    for version in ("v2", "v3", "v4"):
        engine.catalogs.stage(catalog(version))
        engine.catalogs.activate(version)
    held = engine.catalogs.resident_bytes()
    assert result(running.collect()[0]).catalog == "v1"
    assert engine.catalogs.resident_bytes() < held


def test_what_fails_while_it_is_read_is_raised_to_its_own_caller(
    engine: RecallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_on_one(batch: Sequence[Any], *rest: Any) -> Iterator[Any]:
        if len(batch) == 2:
            raise ZeroDivisionError("a bug")
        return answers_of(batch, *rest)

    monkeypatch.setattr(pipeline, "answers_of", fail_on_one)
    faulty, sound = engine.submit([request()] * 2), engine.submit([request()])
    result(sound.collect()[0])  # finishes the other one on its way
    with pytest.raises(ZeroDivisionError):
        faulty.collect()
    assert_pool_is_whole(engine)


def test_a_call_that_fails_half_launched_gives_everything_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(directory, max_batch=1)
    search, calls = Stages.search, []

    def fail_second(*args: Any) -> Tensor:
        calls.append(args)
        if len(calls) == 2:
            raise ZeroDivisionError("a bug")
        return search(*args)

    monkeypatch.setattr(Stages, "search", fail_second)
    with pytest.raises(ZeroDivisionError):
        engine.submit(histories(3))
    assert_pool_is_whole(engine)
    result(engine.recall([request()])[0])


def test_a_device_that_is_lost_while_a_batch_runs_is_a_device_error(
    engine: RecallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = engine.submit([request()])

    def lose(_: Mark) -> None:
        raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(Mark, "wait", lose)
    monkeypatch.setattr(Mark, "reached", property(lose))
    assert running.done
    with pytest.raises(DeviceError, match="illegal memory access"):
        running.collect()
    assert_pool_is_whole(engine)


@pytest.mark.parametrize("lost", [True, False])
def test_an_error_of_a_library_is_a_device_error_if_the_device_is_lost(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize(_: torch.device) -> None:
        if lost:
            raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with (
        pytest.raises(DeviceError if lost else RuntimeError, match="Triton Error"),
        _device_errors(torch.device("cuda")),
    ):
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")


def test_an_answer_for_lack_of_memory_holds_none(engine: RecallEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Tensor]] = []

    def prefill(*_: object) -> Tensor:
        half_done = torch.zeros(1000)
        held.append(weakref.ref(half_done))
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Stages, "prefill", prefill)
    gc.disable()
    try:
        (answer,) = engine.recall(histories(1))
        assert isinstance(answer, RequestError)
        assert answer.message == "out of device memory: no memory"
        assert [each() for each in held] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("host_pages", [0, 20])
def test_after_ten_thousand_mixed_requests_with_injected_faults_every_lease_is_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch, host_pages: int
) -> None:
    """The device's part is left out, but for its faults."""
    page_bytes = MODEL.layers * 2 * MODEL.kv_heads * 128 * MODEL.head_dim * 4
    engine = engine_on(directory, context_pages=24, sessions_host_bytes=host_pages * page_bytes)
    users = [f"user {number}" for number in range(30)]
    random = np.random.default_rng(11)
    hidden = torch.zeros(16, MODEL.hidden)

    def fault() -> None:
        if random.random() < 0.05:
            raise torch.OutOfMemoryError("no memory") if random.random() < 0.5 else ZeroDivisionError("a bug")

    def prefill(_: Stages, shape: PrefillShape, memory: Tensor) -> Tensor:
        fault()
        return hidden[: shape.requests]

    def search(_: Stages, shape: SearchShape, memory: Tensor, hidden: Tensor, tries: object) -> Tensor:
        fault()
        output = torch.zeros(shape.outputs().nbytes, dtype=torch.uint8)
        shape.output_over(output).widths.copy_(torch.from_numpy(random.choice([-1, 5, 5, 5], shape.requests))[:, None])
        return output

    monkeypatch.setattr(Stages, "prefill", prefill)
    monkeypatch.setattr(Stages, "search", search)

    def some_request() -> RecallRequest:
        return request(
            top_k=int(random.integers(0, 17)),
            history=random.integers(-5, ITEMS + 5, int(random.integers(0, 60))),
            score=str(random.choice(("level", "vocab"))),
            template=str(random.choice(("default", "default", "bare", "nowhere"))),
            catalog=(None, "v1", "gone")[random.integers(3)],
            session=str(random.choice(users)) if random.random() < 0.7 else None,
        )

    seen, outcomes = 0, {"ok": 0, "refused": 0, "raised": 0}
    running: list[Running] = []
    while seen < 10_000 or running:
        if seen < 10_000 and len(running) < 3:
            requests = [some_request() for _ in range(int(random.integers(1, 40)))]
            seen += len(requests)
            engine.forget(str(random.choice(users)))
            engine.drop(str(random.choice(users)).__eq__)
            try:
                running.append(engine.submit(requests))
            except ZeroDivisionError:
                outcomes["raised"] += len(requests)
        else:
            for answer in running.pop(int(random.integers(len(running)))).collect():
                outcomes["ok" if isinstance(answer, RecallResult) else "refused"] += 1
                assert isinstance(answer, (RecallResult, RequestError))
    assert sum(outcomes.values()) == seen
    assert min(outcomes.values()) > 100
    stats = engine.stats()
    assert stats["context_pages_high_water"] == 24
    assert min(stats[figure] for figure in ("session_hits", "session_evictions", "session_pages")) > 5
    assert (stats["context_leases"], stats["context_pages_used"]) == (0, stats["session_pages"])
    assert not host_pages or stats["host_session_hits"] > 5
    engine.drop(lambda _: True)
    assert_pool_is_whole(engine)
    assert engine.stats().get("host_session_pages", 0) == 0
    assert engine.catalogs._slots["v1"].pins == 0  # noqa: SLF001
