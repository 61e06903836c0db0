"""The engine as a whole: batches, pools, errors, what a result says."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.errors import DeviceError, ModelError, RequestError
from engine.model.decoder import Decoder
from engine.recall_engine import Answer, RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult, TagFilter
from engine.settings import EngineSettings
from tests.engine.tiny_models import TinyModel, weights_of, write_model

MODEL = TinyModel((8, 8, 8), max_history_items=60, history_drop=10)
ITEMS = 200


def catalog(version: str, ids: np.ndarray | list[str] | None = None) -> Catalog:
    random = np.random.default_rng(1)
    return build_catalog(
        version=version,
        model=MODEL.name,
        sizes=MODEL.sizes,
        ids=np.arange(ITEMS) if ids is None else ids,
        sids=random.integers(0, 8, (ITEMS, 3)).astype(np.int32),
        tags={"even": np.arange(ITEMS) % 2 == 0},
        fields={"title": pa.array([f"title {number}" for number in range(ITEMS)])},
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(MODEL, tmp_path_factory.mktemp("model"))


def engine_on(directory: Path, **settings: Any) -> RecallEngine:
    engine = RecallEngine(EngineSettings(**({"model": directory, "device": "cpu", "context_pages": 8} | settings)))
    engine.catalogs.stage(catalog("v1"))
    engine.catalogs.activate("v1")
    return engine


@pytest.fixture(scope="module")
def engine(directory: Path) -> RecallEngine:
    return engine_on(directory)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("context_pages", 1 << 34), ("context_pages", 1 << 60), ("max_batch_rows", 1 << 42)],
)
def test_a_pool_that_does_not_fit_is_a_model_error_that_names_the_setting(
    directory: Path, setting: str, value: int
) -> None:
    with pytest.raises(ModelError, match=rf"lower engine\.{setting} \({value}\)"):
        engine_on(directory, **{setting: value})


def test_weights_that_do_not_fit_are_a_model_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of ...\nmore")

    monkeypatch.setattr("engine.recall_engine.load_weights", out_of_memory)
    with pytest.raises(ModelError, match=r"no memory for the weights: .* allocate 2\.00 GiB$"):
        engine_on(directory)


def request(**changes: Any) -> RecallRequest:
    defaults: dict[str, Any] = {"beam": BeamPolicy((8, 16, 16)), "top_k": 10, "history": np.arange(5)}
    return RecallRequest(**(defaults | changes))


def result(answer: Answer) -> RecallResult:
    assert isinstance(answer, RecallResult), answer
    return answer


def assert_same(one: Answer, other: Answer) -> None:
    a, b = result(one), result(other)
    np.testing.assert_array_equal(a.items, b.items)
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)


def assert_pool_is_whole(engine: RecallEngine) -> None:
    stats = engine.stats()
    assert (stats["context_pages_used"], stats["context_leases"], stats["context_leases_leaked"]) == (0, 0, 0)


def test_a_result_says_what_served_it(engine: RecallEngine) -> None:
    (answer,) = engine.recall([request(return_sids=True, return_fields=("title",), history=np.array([3, 999]))])
    found = result(answer)
    assert (found.model, found.catalog) == (MODEL.name, "v1")
    assert (found.context_tokens, found.unknown_items, found.truncated) == (1 + 3 + 1, 1, False)
    assert len(found.beam_widths) == 3
    assert found.fields is not None
    assert found.fields["title"] == [f"title {number}" for number in found.items]
    assert found.sids is not None
    assert found.sids.tolist() == catalog_sids(found.items)
    assert (np.diff(found.scores) <= 0).all()
    assert found.prefill_ms > 0
    assert found.decode_ms > 0


def catalog_sids(items: Any) -> list[list[int]]:
    sids: list[list[int]] = np.random.default_rng(1).integers(0, 8, (ITEMS, 3))[items].tolist()
    return sids


def test_filters_exclusions_and_exhaustion_are_exact(engine: RecallEngine) -> None:
    everything = BeamPolicy((8, 64, 256))
    evens = {"filter": TagFilter(all=("even",)), "beam": everything}
    few = {"exclude": np.arange(20, ITEMS), "exclude_history": True, "history": np.arange(4, 8)}
    all_evens, rest, enough = engine.recall(
        [request(top_k=101, **evens), request(top_k=20, **evens, **few), request(top_k=100, **evens)]
    )
    assert set(result(all_evens).items) == set(range(0, ITEMS, 2))
    assert result(all_evens).exhausted
    assert set(result(rest).items) == {0, 2, 8, 10, 12, 14, 16, 18}
    assert result(rest).exhausted
    assert not result(enough).exhausted


def test_a_batch_larger_than_the_limits_runs_in_parts_and_every_lease_comes_back(directory: Path) -> None:
    engine = engine_on(directory, max_batch=3, context_pages=2)
    random = np.random.default_rng(0)
    requests = [
        request(history=random.integers(0, ITEMS, int(random.integers(0, 60))), score=score)
        for score in ("level", "vocab", "legal", "level", "vocab") * 3
    ]
    together = engine.recall(requests)
    for one, answer in zip(requests, together, strict=True):
        assert_same(engine.recall([one])[0], answer)
    assert engine.stats()["context_pages_high_water"] == 2
    assert_pool_is_whole(engine)


def test_bad_requests_are_answered_in_place_and_neighbours_as_if_alone(engine: RecallEngine) -> None:
    good = request()
    bad = {
        1: (request(top_k=99), "bad_request"),
        2: (request(catalog="v0"), "unknown_catalog"),
        4: (request(history=["a string"]), "bad_request"),
        5: (request(return_fields=("colour",)), "bad_request"),
        7: (request(history=None, tokens=np.ones(2000, dtype=np.int32)), "too_large"),
        8: (request(history=np.array([ITEMS + 1]), template="bare"), "bad_request"),
    }
    answers = engine.recall([bad[place][0] if place in bad else good for place in range(10)])
    (alone,) = engine.recall([good])
    for place, answer in enumerate(answers):
        if place in bad:
            assert isinstance(answer, RequestError)
            assert answer.code == bad[place][1]
        else:
            assert_same(answer, alone)
    assert_pool_is_whole(engine)


def test_no_requests_have_no_answers(engine: RecallEngine) -> None:
    assert engine.recall([]) == []


def test_without_a_catalog_a_request_says_so(directory: Path) -> None:
    (answer,) = RecallEngine(EngineSettings(model=directory, device="cpu", context_pages=1)).recall([request()])
    assert isinstance(answer, RequestError)
    assert answer.code == "no_catalog"


def test_versions_with_ids_of_different_kinds_serve_one_batch(directory: Path) -> None:
    engine = engine_on(directory)
    engine.catalogs.stage(catalog("v2", [f"item {number}" for number in range(ITEMS)]))
    old, new = engine.recall([request(), request(catalog="v2", history=[f"item {number}" for number in range(5)])])
    assert [f"item {number}" for number in result(old).items] == sorted_like(result(old), result(new))
    np.testing.assert_allclose(result(old).scores, result(new).scores, atol=1e-5)
    assert result(new).catalog == "v2"


def sorted_like(old: RecallResult, new: RecallResult) -> list[str]:
    """Strings order otherwise inside an SID than numbers do: put equal scores in the numbers' order."""
    names = list(new.items)
    assert sorted(names) == sorted(f"item {number}" for number in old.items)
    return sorted(names, key=lambda name: list(old.items).index(int(str(name).split()[1])))


def test_scores_that_are_not_numbers_spoil_neither_neighbours_nor_those_who_come_after(tmp_path: Path) -> None:
    weights = weights_of(MODEL)
    weights["model.embed_tokens.weight"][5] = np.nan
    engine = engine_on(write_model(MODEL, tmp_path, weights))
    poisoned = request(history=None, tokens=np.array([1, 5, 2], dtype=np.int32))
    clean = request(history=None, tokens=np.array([1, 16, 2], dtype=np.int32))
    (alone,) = engine.recall([clean])
    failed, neighbour = engine.recall([poisoned, clean])
    assert isinstance(failed, RequestError)
    assert failed.code == "internal"
    assert_same(neighbour, alone)
    assert not any(tensor.isnan().any() for tensor in engine._context.layer(0))  # noqa: SLF001
    assert_pool_is_whole(engine)


def test_the_estimate_bounds_the_context(engine: RecallEngine) -> None:
    for one in (request(), request(history=np.arange(150)), request(history=None, tokens=np.ones(7, dtype=np.int32))):
        assert engine.estimate_tokens(one) == result(engine.recall([one])[0]).context_tokens


def test_a_swap_during_recall_leaves_each_answer_whole(directory: Path) -> None:
    engine = engine_on(directory)
    versions = [catalog(f"v{number}") for number in range(2, 12)]
    done = threading.Event()

    def swap() -> None:
        for version in versions:
            engine.catalogs.stage(version)
            engine.catalogs.activate(version.version)
        done.set()

    (before,) = engine.recall([request()])
    thread = threading.Thread(target=swap)
    thread.start()
    while not done.is_set():
        answers = engine.recall([request(), request()])
        assert len({result(answer).catalog for answer in answers}) == 1
        assert_same(answers[0], before)
    thread.join()
    assert result(engine.recall([request()])[0]).catalog == "v11"


def test_after_many_mixed_requests_with_faults_every_lease_is_back(directory: Path) -> None:
    engine = engine_on(directory)
    random = np.random.default_rng(3)
    small = BeamPolicy((2, 2, 2))
    for _ in range(25):
        engine.recall(
            [
                request(
                    beam=small,
                    top_k=int(random.integers(0, 4)),
                    history=random.integers(-5, ITEMS + 5, int(random.integers(0, 60))),
                    template=str(random.choice(("default", "bare", "nowhere"))),
                    catalog=(None, "v1", "gone")[random.integers(3)],
                )
                for _ in range(16)
            ]
        )
    assert_pool_is_whole(engine)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(torch.OutOfMemoryError("no memory"), "overloaded"), (torch.AcceleratorError("lost"), None)],
)
def test_device_faults_are_an_answer_or_a_device_error_and_return_their_leases(
    directory: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, expected: str | None
) -> None:
    engine = engine_on(directory)

    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(Decoder, "decode", fail)
    if expected is None:
        with pytest.raises(DeviceError, match="lost"):
            engine.recall([request()])
    else:
        (answer,) = engine.recall([request()])
        assert isinstance(answer, RequestError)
        assert answer.code == expected
    assert_pool_is_whole(engine)


def test_bfloat16_on_the_cpu_ranks_much_like_float32(directory: Path) -> None:
    wide = request(beam=BeamPolicy((8, 64, 64)), top_k=20)
    exact, rounded = (
        result(engine_on(directory, precision=precision).recall([wide])[0]) for precision in ("fp32", "bf16")
    )
    assert len(set(exact.items) & set(rounded.items)) >= 15


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_a_model_error(directory: Path) -> None:
    with pytest.raises(ModelError, match="cuda"):
        engine_on(directory, device="cuda")
