"""Answers on a resident context equal those of a cold prefill; what stays, what goes, and who notices."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.catalog.resident import ResidentCatalog
from engine.errors import RequestError
from engine.recall_engine import Answer, RecallEngine, Running
from engine.request import BeamPolicy, ItemIds, RecallRequest, RecallResult
from engine.runtime.prefill_input import PrefillShape
from engine.runtime.search_input import SearchShape
from engine.runtime.stages import Stages
from engine.settings import EngineSettings
from tests.engine.equality import EPSILON
from tests.engine.test_graphs import with_graphs
from tests.engine.tiny_models import Architecture, TinyModel, Weights, weights_of, write_model

MODEL = TinyModel((8, 8, 8), max_history_items=120, history_drop=30)
ITEMS = 300
INSTRUCTION = [int(token) for token in np.random.default_rng(5).integers(0, 16, 150)]
"""One page and a bit that every prompt of the template ``told`` begins with."""


def write(model: TinyModel, directory: Path, weights: Weights | None = None) -> Path:
    """A model with a template more."""
    write_model(model, directory, weights)
    path = directory / "sid.json"
    sid = json.loads(path.read_text())
    sid["prompts"]["told"] = {"prefix": [*INSTRUCTION, "hour"], "suffix": [2]}
    path.write_text(json.dumps(sid))
    return directory


def catalog(version: str, seed: int, items: int = ITEMS, model: TinyModel = MODEL) -> Catalog:
    """Catalogs of different seeds give the same items other SIDs."""
    random = np.random.default_rng(seed)
    sids = random.integers(0, 8, (items, 3)).astype(np.int32)
    return build_catalog(version=version, model=model.name, sizes=model.sizes, ids=np.arange(items), sids=sids)


def engine_on(directory: Path, model: TinyModel = MODEL, **settings: Any) -> RecallEngine:
    engine = RecallEngine(EngineSettings(**({"model": directory, "device": "cpu", "context_pages": 24} | settings)))
    for version, seed in (("v3", 2), ("v1", 1)):
        engine.catalogs.stage(catalog(version, seed, model=model))
        engine.catalogs.activate(version)
    engine.catalogs.stage(catalog("v2", 1, items=ITEMS - 40, model=model))
    return engine


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(MODEL, tmp_path_factory.mktemp("model"))


def request(user: str | None, history: NDArray[np.int64], **changes: Any) -> RecallRequest:
    fields: dict[str, Any] = {"beam": BeamPolicy((8, 12, 12)), "top_k": 8, "history": history, "session": user}
    return RecallRequest(**(fields | changes))


def told(user: str | None, history: NDArray[np.int64], **changes: Any) -> RecallRequest:
    return request(user, history, template="told", context={"hour": "night"}, **changes)


def result(answer: Answer) -> RecallResult:
    assert isinstance(answer, RecallResult), answer
    return answer


def assert_agrees(one: Answer, other: Answer) -> None:
    """Scores to ε; items in the same order, but for neighbours whose scores are within ε."""
    a, b = result(one), result(other)
    np.testing.assert_allclose(a.scores, b.scores, atol=EPSILON)
    for item, theirs, score in zip(a.items, b.items, a.scores, strict=True):
        assert item == theirs or (np.abs(a.scores - score) < EPSILON).sum() > 1
    assert (a.context_tokens, a.exhausted, a.truncated) == (b.context_tokens, b.exhausted, b.truncated)


def assert_only_sessions_hold_pages(engine: RecallEngine) -> None:
    stats = engine.stats()
    assert (stats["context_leases"], stats["context_leases_leaked"]) == (0, 0)
    assert stats["context_pages_used"] == stats["session_pages"] + stats["shared_prefix_pages"]
    engine.drop(lambda _: True)
    assert engine.stats()["context_pages_used"] == engine.stats()["shared_prefix_pages"]


class Users:
    """Histories that are appended to, cut, replaced and asked again, under catalogs that change."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.histories = {user: self.random.integers(0, ITEMS + 20, 60) for user in "abcde"}

    def ask(self) -> RecallRequest:
        user = str(self.random.choice(list(self.histories)))
        history, kind = self.histories[user], self.random.integers(10)
        if kind < 6:
            history = np.append(history, self.random.integers(0, ITEMS + 20, int(self.random.integers(1, 25))))
        elif kind == 6:
            history = history[: int(self.random.integers(0, len(history) + 1))]
        elif kind == 7:
            history = self.random.integers(0, ITEMS, int(self.random.integers(0, 130)))
        self.histories[user] = history
        template = told if self.random.random() < 0.7 else request
        return template(
            user if self.random.random() < 0.9 else None,
            history,
            catalog=str(self.random.choice(["v1", "v1", "v1", "v2", "v3"])),
            exclude_history=bool(self.random.random() < 0.3),
        )


@pytest.mark.parametrize(("architecture", "seed"), [("qwen3", 1), ("qwen3", 2), ("qwen2", 3), ("llama", 4)])
def test_over_random_sequences_a_resident_context_answers_as_a_cold_one_does(
    tmp_path: Path, architecture: Architecture, seed: int
) -> None:
    model = TinyModel((8, 8, 8), architecture, max_history_items=120, history_drop=30)
    path = write(model, tmp_path)
    warm, cold = engine_on(path, model, context_pages=14), engine_on(path, model, sessions=0)
    users = Users(seed)
    running: list[tuple[Running, list[Answer]]] = []
    for step in range(40):
        batch = [users.ask() for _ in range(int(users.random.integers(1, 5)))]
        running.append((warm.submit(batch), cold.recall(batch)))
        while len(running) > (int(users.random.integers(3)) if step < 39 else 0):
            found, expected = running.pop(0)
            for one, other in zip(found.collect(), expected, strict=True):
                assert_agrees(one, other)
                assert result(other).reused_tokens == 0
        if users.random.random() < 0.1:
            warm.forget(str(users.random.choice(list(users.histories))))
    stats = warm.stats()
    assert stats["session_hits"] > 10
    assert stats["session_evictions"] > 3
    assert stats["shared_prefixes"] == 1
    assert stats["reused_tokens"] > 0.2 * cold.stats()["prefill_tokens"]
    assert stats["prefill_tokens"] == cold.stats()["prefill_tokens"] - stats["reused_tokens"]
    assert cold.stats()["context_pages_used"] == 0
    assert_only_sessions_hold_pages(warm)


def test_a_user_who_comes_back_has_only_the_new_tokens_computed(directory: Path) -> None:
    engine = engine_on(directory)
    history = np.arange(80)
    (first,) = engine.recall([told("u", history)])
    (back,) = engine.recall([told("u", np.append(history, [7, 9]))])
    assert result(first).reused_tokens == 0
    assert result(back).reused_tokens == result(first).context_tokens - 1  # all but the suffix
    assert result(back).context_tokens == result(first).context_tokens + 6
    (same,) = engine.recall([told("u", np.append(history, [7, 9]))])
    assert result(same).reused_tokens == result(same).context_tokens - 1
    assert_agrees(same, back)


def test_a_prompt_of_tokens_is_continued_as_well(directory: Path) -> None:
    engine, cold = engine_on(directory), engine_on(directory, sessions=0)
    tokens = np.random.default_rng(0).integers(0, 40, 300).astype(np.int32)
    for length in (200, 256, 257, 300, 100):
        one = request("u", None, tokens=tokens[:length])  # type: ignore[arg-type]  # tokens instead
        answer = engine.recall([one])[0]
        assert_agrees(answer, cold.recall([one])[0])
    assert result(answer).reused_tokens == 99


def test_resident_and_cold_requests_share_a_batch_and_neither_notices(directory: Path) -> None:
    engine, cold = engine_on(directory), engine_on(directory, sessions=0)
    engine.recall([told("a", np.arange(70)), request("b", np.arange(100))])
    batch = [
        request("b", np.arange(105)),
        told("new", np.arange(40, 60)),
        request(None, np.arange(9)),
        told("a", np.arange(71)),
        request("other", np.arange(110)),
    ]
    answers = engine.recall(batch)
    assert [result(answer).reused_tokens > 0 for answer in answers] == [True, True, False, True, False]
    for one, other in zip(answers, cold.recall(batch), strict=True):
        assert_agrees(one, other)


def test_two_requests_of_one_user_in_one_batch_or_in_two_under_way_are_both_right(directory: Path) -> None:
    engine, cold = engine_on(directory), engine_on(directory, sessions=0)
    engine.recall([told("u", np.arange(50))])
    asked = [told("u", np.arange(length)) for length in (52, 55, 60, 51)]
    expected = cold.recall(asked)
    running = [engine.submit(asked[:2]), engine.submit(asked[2:3])]
    running.append(engine.submit(asked[3:]))  # finishes the first, whose later answer stays
    found = [answer for each in running for answer in each.collect()]
    for one, other in zip(found, expected, strict=True):
        assert_agrees(one, other)
    prefix = 128
    assert [result(answer).reused_tokens > prefix for answer in found] == [True, False, False, True]
    assert engine.stats()["sessions"] == 1
    assert_only_sessions_hold_pages(engine)


def test_what_is_kept_never_lets_a_request_wait_that_would_fit_without(directory: Path) -> None:
    engine = engine_on(directory, context_pages=6)
    for user in "abc":
        engine.recall([request(user, np.arange(80))])  # two pages each
    assert engine.stats()["context_pages_used"] == 6
    running = engine.submit([request("d", np.arange(80))])
    second = engine.submit([request("e", np.arange(80)), request("f", np.arange(80))])
    assert engine.stats()["context_leases"] == 3  # the first was not waited for
    for answer in (*running.collect(), *second.collect()):
        result(answer)
    assert engine.stats()["session_evictions"] == 3
    (whole,) = engine.recall([request(None, None, tokens=np.ones(6 * 128, dtype=np.int32))])  # type: ignore[arg-type]  # tokens instead
    assert result(whole).context_tokens == 6 * 128
    assert engine.stats()["sessions"] == 0


def test_a_batch_is_cut_by_its_new_tokens_and_not_by_those_that_are_resident(directory: Path) -> None:
    engine, cold = (engine_on(directory, max_batch_tokens=600, sessions=share) for share in (1, 0))
    histories = [np.arange(start, start + 100) for start in range(5)]
    first = [request(str(user), history) for user, history in enumerate(histories)]
    again = [request(str(user), np.append(history, 7)) for user, history in enumerate(histories)]
    for batch in (first, again):
        for one, other in zip(engine.recall(batch), cold.recall(batch), strict=True):
            assert_agrees(one, other)
    assert engine.stats()["eager_prefills"] == 5 + 1
    assert cold.stats()["eager_prefills"] == 5 + 5
    mixed = [again[0], request("new", histories[1]), again[2], request("newer", histories[3]), again[4]]
    for one, other in zip(engine.recall(mixed), cold.recall(mixed), strict=True):
        assert_agrees(one, other)
    assert engine.stats()["eager_prefills"] == 6 + 2
    assert_only_sessions_hold_pages(engine)


def test_where_memory_ends_in_a_later_part_of_a_batch_the_earlier_one_is_answered(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(directory, max_batch_tokens=600)
    search, calls = Stages.search, []

    def fail_second(*args: Any) -> torch.Tensor:
        calls.append(args)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no memory")
        return search(*args)

    monkeypatch.setattr(Stages, "search", fail_second)
    answers = engine.recall([request(str(user), np.arange(user, user + 100)) for user in range(3)])
    assert [isinstance(answer, RecallResult) for answer in answers] == [True, False, False]
    assert engine.stats()["sessions"] == 1
    assert_only_sessions_hold_pages(engine)


def test_the_memory_of_sessions_is_bounded_by_the_setting(directory: Path) -> None:
    engine = engine_on(directory, sessions=0.25)
    for user in range(8):
        engine.recall([told(str(user), np.arange(60))])
        assert engine.stats()["session_pages"] + engine.stats()["shared_prefix_pages"] <= 6
    assert engine.stats()["sessions"] == 2  # two pages of their own each, beside the shared one


def test_scores_that_are_not_numbers_leave_no_session_and_spoil_no_shared_page(tmp_path: Path) -> None:
    weights = weights_of(MODEL)
    poison = MODEL.vocab - 1
    weights["model.embed_tokens.weight"][poison] = np.nan
    path = write(MODEL, tmp_path, weights)
    engine, cold = engine_on(path), engine_on(path, sessions=0)
    engine.recall([told("good", np.arange(20)), told("u", np.arange(30))])
    broken = request("u", np.arange(31), template="told", context={"hour": poison})
    answers = engine.recall([broken, told("good", np.arange(21))])
    assert isinstance(answers[0], RequestError)
    assert_agrees(answers[1], cold.recall([told("good", np.arange(21))])[0])
    assert engine.stats()["sessions"] == 1
    assert not any(tensor.isnan().any() for tensor in engine._context.layer(1))  # noqa: SLF001
    (again,) = engine.recall([told("u", np.arange(31))])
    assert result(again).reused_tokens == 128
    assert_agrees(again, cold.recall([told("u", np.arange(31))])[0])
    assert_only_sessions_hold_pages(engine)


def pages_with_anything(engine: RecallEngine) -> int:
    keys, values = engine._context.layer(1)  # noqa: SLF001
    return int(((keys != 0) | (values != 0)).flatten(1).any(1).sum())


def test_a_user_who_is_forgotten_leaves_zeros_idle_or_under_way(directory: Path) -> None:
    engine = engine_on(directory)
    engine.recall([told("u", np.arange(60)), told("other", np.arange(60))])
    assert pages_with_anything(engine) == 1 + 2 + 2 + 1  # one more: the copy of the shared page that was not needed
    engine.forget("u")
    assert pages_with_anything(engine) == 4
    running = engine.submit([told("u", np.arange(40)), told("other", np.arange(61))])
    engine.forget("u")
    engine.forget("nobody")
    for answer in running.collect():
        result(answer)
    assert engine.stats()["sessions"] == 1
    assert pages_with_anything(engine) <= 4
    assert result(engine.recall([told("u", np.arange(60))])[0]).reused_tokens == 128


def test_a_user_who_is_forgotten_leaves_zeros_where_the_batch_under_way_fails(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(directory)
    running = engine.submit([request("u", np.arange(60))])
    engine.forget("u")
    monkeypatch.setattr("engine.runtime.pipeline.answers_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        running.collect()
    assert pages_with_anything(engine) == 0


def test_sessions_of_users_who_went_elsewhere_are_dropped(directory: Path) -> None:
    engine = engine_on(directory)
    engine.recall([request(user, np.arange(20)) for user in ("a1", "a2", "b1")])
    engine.drop(lambda user: user.startswith("a"))
    answers = engine.recall([request(user, np.arange(21)) for user in ("a1", "b1")])
    assert [result(answer).reused_tokens > 0 for answer in answers] == [False, True]


def test_a_batch_that_fails_leaves_no_session_of_its_own(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(directory)
    engine.recall([request("a", np.arange(20)), request("b", np.arange(20))])

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("engine.runtime.stages.Stages.search", fail)
        assert isinstance(engine.recall([request("a", np.arange(25))])[0], RequestError)
    answers = engine.recall([request("a", np.arange(25)), request("b", np.arange(25))])
    assert [result(answer).reused_tokens > 0 for answer in answers] == [False, True]
    assert_only_sessions_hold_pages(engine)


def test_padded_runs_answer_on_resident_contexts_as_exact_ones_do(directory: Path) -> None:
    graphed = with_graphs(
        engine_on(directory, max_batch=4),
        [PrefillShape(tokens, 4, 8) for tokens in (64, 128, 512)],
        [SearchShape(requests, (12,) * 3, 12, 8, 400, vocab=False) for requests in (1, 4)],
    )
    cold = engine_on(directory, sessions=0)
    users = Users(seed=3)
    for _ in range(25):
        batch = [users.ask() for _ in range(int(users.random.integers(1, 5)))]
        for one, other in zip(graphed.recall(batch), cold.recall(batch), strict=True):
            assert_agrees(one, other)
    stats = graphed.stats()
    assert stats["eager_searches"] == 0
    assert stats["graph_prefills"] > 10
    assert stats["session_hits"] > 10


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_in_lower_precisions_a_resident_context_ranks_as_a_cold_one_does(directory: Path, precision: str) -> None:
    engine, cold = (engine_on(directory, precision=precision, sessions=share) for share in (1, 0))
    asked = [told("u", np.arange(length), top_k=12) for length in (60, 62, 75, 100)]
    overlap = []
    for one in asked:
        warm, other = result(engine.recall([one])[0]), result(cold.recall([one])[0])
        overlap.append(len(set(warm.items) & set(other.items)) / 12)
    assert engine.stats()["session_hits"] == 3
    assert np.mean(overlap) >= 0.75


def test_the_estimate_counts_what_is_new_and_is_an_upper_bound_of_a_continued_history(directory: Path) -> None:
    engine = engine_on(directory)
    history = np.arange(110)
    assert engine.estimate_tokens(told("u", history)) == 150 + 1 + 330 + 1
    engine.recall([told("u", history)])
    for more in (0, 1, 8):
        one = told("u", np.append(history, np.arange(more)))
        estimate = engine.estimate_tokens(one)
        answer = result(engine.recall([one])[0])
        assert answer.context_tokens - answer.reused_tokens == estimate == 3 * more + 1
        engine.forget("u")
        engine.recall([told("u", history)])
    cut = told("u", np.arange(121))  # the cap takes a block of the oldest: nothing after the instruction stays
    answer = result(engine.recall([cut])[0])
    assert answer.truncated
    assert answer.reused_tokens < 160


def test_between_two_cuts_by_the_cap_every_request_finds_its_session(directory: Path) -> None:
    engine = engine_on(directory)
    events = np.random.default_rng(2).integers(0, ITEMS, 200)
    reused = [result(engine.recall([told("u", events[:count])])[0]).reused_tokens for count in range(110, 200)]
    hits = [tokens > 160 for tokens in reused]
    assert [110 + place for place, hit in enumerate(hits) if not hit] == [110, 121, 151, 181]


@pytest.mark.parametrize("host", [0, 1 << 24], ids=["device", "host"])
def test_a_user_who_comes_back_has_only_new_items_looked_up_until_the_catalog_changes(
    directory: Path, host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(directory, context_pages=6 if host else 24, sessions_host_bytes=host)
    asked: list[int] = []
    lookup = ResidentCatalog.lookup

    def counted(self: ResidentCatalog, ids: ItemIds) -> NDArray[np.int32]:
        asked.append(len(ids))
        return lookup(self, ids)

    monkeypatch.setattr(ResidentCatalog, "lookup", counted)
    history = np.arange(100, dtype=np.int64)
    for events, catalog, found in ((90, "v1", 90), (95, "v1", 5), (95, "v1", 0), (100, "v2", 100), (80, "v2", 0)):
        asked.clear()
        warm = result(engine.recall([request("ann", history[:events], catalog=catalog)])[0])
        assert sum(asked) == found
        assert_agrees(warm, engine.recall([request(None, history[:events], catalog=catalog)])[0])
        if host:  # the device's pages go to others
            result(engine.recall([request("bob", history[::-1].copy())])[0])
    asked.clear()
    engine.forget("ann")
    result(engine.recall([request("ann", history)])[0])
    assert sum(asked) == 100
