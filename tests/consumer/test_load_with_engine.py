"""What requests get with less, or from a shared run, is right: with the engine, on the CPU."""

from dataclasses import replace

import numpy as np
import pytest

from consumer.serving.coalesce import cut, shared
from consumer.serving.ladder import Ladder
from consumer.serving.load_settings import LoadSettings
from engine.recall_engine import RecallEngine
from engine.request import RecallRequest, RecallResult, TagFilter
from tests.engine.test_recall_engine import MODEL, engine_on, request
from tests.engine.tiny_models import write_model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> RecallEngine:
    return engine_on(write_model(MODEL, tmp_path_factory.mktemp("model")))


def answer(engine: RecallEngine, asked: RecallRequest) -> RecallResult:
    (found,) = engine.recall([asked])
    assert isinstance(found, RecallResult)
    return found


@pytest.mark.parametrize("tags", [None, TagFilter(none=("even",)), TagFilter(all=("nothing",))])
@pytest.mark.parametrize("top_k", [1, 4, 15])
def test_a_part_of_a_shared_answer_is_the_answer_of_its_own(
    engine: RecallEngine, top_k: int, tags: TagFilter | None
) -> None:
    newest = request(top_k=top_k, filter=tags, return_sids=True, return_fields=("title",))
    greedy = replace(newest, history=np.arange(3), top_k=16)
    part, own = cut(answer(engine, shared([greedy, newest])), top_k), answer(engine, newest)
    assert np.array_equal(part.items, own.items)
    assert np.array_equal(part.scores, own.scores)
    assert part.sids is not None
    assert own.sids is not None
    assert np.array_equal(part.sids, own.sids)
    assert (part.fields, part.exhausted, part.context_tokens) == (own.fields, own.exhausted, own.context_tokens)


def test_at_every_step_of_the_ladder_the_request_is_valid_and_its_exclusions_hold(engine: RecallEngine) -> None:
    ladder = Ladder(LoadSettings(degrade=("beam", "history"), narrow_to=0.1, shorten_to=0.2))
    asked = request(history=np.arange(50), exclude=np.array([60, 61]), exclude_history=True, top_k=12)
    tokens = engine.estimate_tokens(asked)
    for step in range(ladder.last + 1):
        variant = ladder.variant(asked, tokens, step)
        engine.validate(variant.request)
        assert engine.estimate_tokens(variant.request) <= variant.tokens + len(MODEL.sizes)
        found = answer(engine, variant.request)
        assert len(found.items) == 12
        assert not set(np.asarray(found.items).tolist()) & {*range(50), 60, 61}
    assert found.beam_widths[-1] < 16
    assert found.context_tokens < tokens
