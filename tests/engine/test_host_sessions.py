"""Sessions that go on living in the host's memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ModelError, RequestError
from engine.recall_engine import RecallEngine
from engine.runtime.host_sessions import HostSessions
from engine.runtime.lane import Mark
from engine.runtime.stages import Stages
from tests.engine.test_session_recall import (
    MODEL,
    Users,
    assert_agrees,
    assert_only_sessions_hold_pages,
    engine_on,
    request,
    result,
    told,
    write,
)

PAGE_BYTES = MODEL.layers * 2 * MODEL.kv_heads * 128 * MODEL.head_dim * 4


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(MODEL, tmp_path_factory.mktemp("model"))


def engine_with(directory: Path, host_pages: int) -> RecallEngine:
    return engine_on(directory, context_pages=8, sessions_host_bytes=host_pages * PAGE_BYTES)


def host_of(engine: RecallEngine) -> HostSessions:
    host = engine._contexts._host  # noqa: SLF001
    assert host is not None
    return host


def long(user: str | None, tokens: int) -> Any:
    return request(user, None, tokens=np.ones(tokens, dtype=np.int32))  # type: ignore[arg-type]  # tokens instead


def push_out(engine: RecallEngine) -> None:
    """Take every page of the device that is not the shared prefix's."""
    result(engine.recall([long(None, 7 * 128)])[0])
    assert engine.stats()["sessions"] == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_over_random_sequences_what_is_brought_back_answers_as_a_cold_context_does(directory: Path, seed: int) -> None:
    engine, cold = engine_with(directory, host_pages=16), engine_on(directory, sessions=0)
    users = Users(seed)
    for _ in range(45):
        batch = [users.ask() for _ in range(int(users.random.integers(1, 4)))]
        for one, other in zip(engine.recall(batch), cold.recall(batch), strict=True):
            assert_agrees(one, other)
        if users.random.random() < 0.1:
            engine.forget(str(users.random.choice(list(users.histories))))
        if users.random.random() < 0.1:
            engine.drop(str(users.random.choice(list(users.histories))).__eq__)
    stats = engine.stats()
    assert stats["host_session_hits"] > 8
    assert stats["host_session_pages"] <= 16
    reused = stats["reused_tokens"] + stats["host_reused_tokens"]
    assert stats["prefill_tokens"] == cold.stats()["prefill_tokens"] - reused
    assert_only_sessions_hold_pages(engine)
    assert engine.stats()["host_session_pages"] == host_of(engine)._pool.open_leases == 0  # noqa: SLF001


def test_a_session_that_had_to_go_comes_back_with_all_of_its_tokens(directory: Path) -> None:
    engine, cold = engine_with(directory, host_pages=16), engine_on(directory, sessions=0)
    engine.recall([told("u", np.arange(60))])
    push_out(engine)
    assert engine.estimate_tokens(told("u", np.arange(61))) == 4
    (back,) = engine.recall([told("u", np.arange(61))])
    assert result(back).context_tokens - result(back).reused_tokens == 4
    assert_agrees(back, cold.recall([told("u", np.arange(61))])[0])
    push_out(engine)
    (again,) = engine.recall([told("u", np.arange(64))])  # the copy has followed
    assert result(again).context_tokens - result(again).reused_tokens == 10
    assert_agrees(again, cold.recall([told("u", np.arange(64))])[0])


def test_a_copy_without_its_shared_prefix_is_no_context(directory: Path) -> None:
    engine, cold = engine_with(directory, host_pages=16), engine_on(directory, sessions=0)
    engine.recall([told("u", np.arange(60))])
    result(engine.recall([long(None, 8 * 128)])[0])  # takes the prefix, too
    (answer,) = engine.recall([told("u", np.arange(61))])
    assert result(answer).reused_tokens == 0
    assert_agrees(answer, cold.recall([told("u", np.arange(61))])[0])


def test_a_copy_is_made_anew_when_its_first_page_has_become_the_shared_prefix(directory: Path) -> None:
    engine, cold = engine_with(directory, host_pages=16), engine_on(directory, sessions=0)
    with engine.catalogs.pin(None) as catalog:
        prompt = engine._prompts.build("told", {"hour": "night"}, np.arange(60), catalog)  # noqa: SLF001
    engine.recall([request("u", None, tokens=prompt.tokens)])  # type: ignore[arg-type]  # tokens instead
    assert engine.stats()["shared_prefixes"] == 0
    assert result(engine.recall([told("u", np.arange(61))])[0]).reused_tokens > 300
    assert engine.stats()["shared_prefixes"] == 1
    push_out(engine)
    (answer,) = engine.recall([told("u", np.arange(62))])
    assert result(answer).reused_tokens > 300
    assert_agrees(answer, cold.recall([told("u", np.arange(62))])[0])


def test_the_copies_used_longest_ago_give_way_but_not_to_what_never_fits(directory: Path) -> None:
    engine = engine_with(directory, host_pages=4)
    for user in "abc":
        engine.recall([request(user, np.arange(60))])  # two pages each
    engine.recall([long("long", 700)])
    assert engine.stats()["host_session_pages"] == 4
    push_out(engine)
    assert [host_of(engine).tokens_of(user) > 0 for user in ("a", "b", "c", "long")] == [False, True, True, False]
    assert result(engine.recall([request("b", np.arange(61))])[0]).reused_tokens > 150


def test_a_copy_that_is_not_complete_when_its_pages_are_given_away_is_not_used(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with(directory, host_pages=16)
    engine.recall([request("u", np.arange(60))])
    with monkeypatch.context() as patch:
        patch.setattr(Mark, "reached", property(lambda _: False))
        push_out(engine)
    assert engine.stats()["host_sessions"] == 0
    assert result(engine.recall([request("u", np.arange(61))])[0]).reused_tokens == 0


def test_what_is_written_over_while_it_may_still_be_copied_is_not_trusted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with(directory, host_pages=16)
    engine.recall([request("u", np.arange(60))])
    monkeypatch.setattr(Stages, "search", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.recall([request("u", np.arange(30))])
    assert host_of(engine).tokens_of("u") == 1 + 3 * 30


def test_where_those_under_way_hold_the_copies_a_session_that_does_not_fit_has_none(directory: Path) -> None:
    engine = engine_with(directory, host_pages=7)
    engine.recall([request("u", np.arange(60))])  # two pages
    push_out(engine)
    first = engine.submit([long("v", 6 * 128)])
    second = engine.submit([request("u", np.arange(100))])  # three, for which the first has to be finished
    result(first.collect()[0])
    assert result(second.collect()[0]).reused_tokens > 150
    assert_only_sessions_hold_pages(engine)


def test_a_user_who_is_forgotten_leaves_zeros_on_the_host(directory: Path) -> None:
    engine = engine_with(directory, host_pages=16)
    memory = host_of(engine)._memory.zero_()  # noqa: SLF001  (it begins as it is found)
    engine.recall([request("u", np.arange(60)), request("v", np.arange(60))])
    push_out(engine)
    assert int(memory.flatten(1).any(1).sum()) == 2 + 2
    running = engine.submit([request("u", np.arange(70))])
    engine.forget("u")
    result(running.collect()[0])
    assert int(memory.flatten(1).any(1).sum()) == 2
    assert result(engine.recall([request("u", np.arange(70))])[0]).reused_tokens == 0


def test_a_user_who_is_forgotten_leaves_zeros_where_the_copy_has_given_way(directory: Path) -> None:
    engine = engine_with(directory, host_pages=4)
    memory = host_of(engine)._memory.zero_()  # noqa: SLF001  (it begins as it is found)
    engine.recall([request("u", np.arange(60))])
    engine.drop(lambda user: user == "u")
    assert int(memory.flatten(1).any(1).sum()) == 2
    engine.forget("u")
    assert not memory.any()


def test_a_batch_that_fails_leaves_the_copy_that_it_took(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, cold = engine_with(directory, host_pages=16), engine_on(directory, sessions=0)
    engine.recall([request("u", np.arange(60))])
    push_out(engine)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    for stage in ("prefill", "search"):
        with monkeypatch.context() as patch:
            patch.setattr(Stages, stage, fail)
            assert isinstance(engine.recall([request("u", np.arange(65))])[0], RequestError)
    (answer,) = engine.recall([request("u", np.arange(65))])
    assert result(answer).reused_tokens > 150
    assert_agrees(answer, cold.recall([request("u", np.arange(65))])[0])


def test_copies_that_do_not_fit_the_host_are_a_model_error(directory: Path) -> None:
    with pytest.raises(ModelError, match=r"lower engine\.sessions_host_bytes"):
        engine_on(directory, sessions_host_bytes=1 << 56)
