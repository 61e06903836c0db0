"""From histories to prompts, and what admission refuses."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.catalog.build import build_catalog
from engine.catalog.resident import ResidentCatalog
from engine.errors import RequestError
from engine.model.spec import ModelSpec
from engine.request import NO_ITEMS, BeamPolicy, RecallRequest
from engine.runtime.admission import Admission
from engine.runtime.prompts import PromptBuilder
from engine.settings import EngineSettings
from tests.engine.tiny_models import TinyModel, write_model

MODEL = TinyModel((4, 3), max_history_items=6, history_drop=2)
SIDS = [(0, 1), (3, 2), (1, 0)]
IDS = [100, 7, -5]
TOKENS = {100: [16, 21], 7: [19, 22], -5: [17, 20]}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return ModelSpec.load(write_model(MODEL, tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def prompts(spec: ModelSpec) -> PromptBuilder:
    return PromptBuilder(spec)


@pytest.fixture(scope="module")
def catalog() -> ResidentCatalog:
    built = build_catalog(
        version="v1",
        model=MODEL.name,
        sizes=MODEL.sizes,
        ids=np.array(IDS, dtype=np.int64),
        sids=np.array(SIDS, dtype=np.int32),
    )
    return ResidentCatalog(built, torch.device("cpu"))


def history(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


def test_items_become_their_code_tokens_between_the_templates_own(
    prompts: PromptBuilder, catalog: ResidentCatalog
) -> None:
    context: dict[str, int | str] = {"hour": 13, "region": "south"}
    built = prompts.build("framed", context, history(7, 100), catalog)
    assert built.tokens.dtype == np.int32
    assert built.tokens.tolist() == [1, 13, 3, 4, *TOKENS[7], 5, 6, 4, *TOKENS[100], 5, 6, 9, 7, 13]
    assert catalog.ids_of(built.items).tolist() == [7, 100]  # type: ignore[union-attr]  # int ids


def test_unknown_items_are_skipped_and_counted(prompts: PromptBuilder, catalog: ResidentCatalog) -> None:
    built = prompts.build("default", {}, history(8, 7, 9, 7), catalog)
    assert built.tokens.tolist() == [1, *TOKENS[7], *TOKENS[7], 2]
    assert (built.unknown_items, built.truncated) == (2, False)


def test_an_empty_history_is_the_template_alone(prompts: PromptBuilder, catalog: ResidentCatalog) -> None:
    assert prompts.build("default", {}, NO_ITEMS, catalog).tokens.tolist() == [1, 2]


@pytest.mark.parametrize(("events", "kept"), [(5, 5), (6, 6), (7, 5), (8, 6), (9, 5), (101, 5), (102, 6)])
def test_a_history_over_the_cap_loses_whole_blocks_of_its_oldest(
    prompts: PromptBuilder, catalog: ResidentCatalog, events: int, kept: int
) -> None:
    ids = [IDS[event % 3] for event in range(events)]
    built = prompts.build("bare", {}, history(*ids), catalog)
    assert built.tokens.tolist() == [token for id_ in ids[-kept:] for token in TOKENS[id_]]
    assert built.truncated == (events > 6)
    assert prompts.upper_bound("default", events) == 2 + 2 * kept


def test_between_two_cuts_of_a_history_over_the_cap_prompts_begin_alike(
    prompts: PromptBuilder, catalog: ResidentCatalog
) -> None:
    ids = [IDS[event % 3] for event in range(40)]
    built = [prompts.build("default", {}, history(*ids[:events]), catalog).tokens[:-1] for events in range(1, 40)]
    grew = [later[: len(one)].tobytes() == one.tobytes() for one, later in pairwise(built)]
    assert [events for events, same in enumerate(grew, 2) if not same] == list(range(7, 40, MODEL.history_drop))


def test_the_common_beginning_ends_at_the_first_slot(prompts: PromptBuilder, catalog: ResidentCatalog) -> None:
    assert prompts.build("default", {}, history(7), catalog).common == 1
    assert prompts.build("framed", {"hour": 13, "region": "south"}, history(7), catalog).common == 1
    assert prompts.build("bare", {}, history(7), catalog).common == 0


@pytest.mark.parametrize(
    ("template", "context", "message"),
    [
        ("unknown", {}, "template"),
        ("framed", {"region": "north"}, "'hour'"),
        ("framed", {"region": "east", "hour": 1}, "east"),
        ("framed", {"region": "north", "hour": 26}, "26"),
        ("framed", {"region": "north", "hour": -1}, "-1"),
        ("default", {"regoin": "north"}, "regoin"),
    ],
)
def test_a_template_or_slot_that_cannot_be_filled_is_a_bad_request(
    prompts: PromptBuilder, template: str, context: dict[str, int | str], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        prompts.check(template, context)
    assert caught.value.code == "bad_request"


def test_a_slot_of_another_template_is_ignored(prompts: PromptBuilder) -> None:
    prompts.check("default", {"region": "north"})


def request(**changes: Any) -> RecallRequest:
    fields: dict[str, Any] = {"beam": BeamPolicy((4, 4)), "top_k": 3, "history": NO_ITEMS}
    return RecallRequest(**(fields | changes))


@pytest.fixture(scope="module")
def admission(spec: ModelSpec, prompts: PromptBuilder) -> Admission:
    settings = EngineSettings(model=Path("unused"), context_pages=1, max_width=8, max_top_k=5)
    return Admission(spec, settings, prompts, max_tokens=128)


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"beam": BeamPolicy((4,))}, "bad_request", "1 beam widths for 2 levels"),
        ({"beam": BeamPolicy((0, 4))}, "bad_request", "width 0"),
        ({"beam": BeamPolicy((4, 9))}, "bad_request", "width 9"),
        ({"beam": BeamPolicy((4, 4), margin=-0.5)}, "bad_request", "margin"),
        ({"beam": BeamPolicy((4, 4), margin=float("nan"))}, "bad_request", "margin"),
        ({"beam": BeamPolicy((4, 4), min_width=0)}, "bad_request", "min_width"),
        ({"top_k": 0}, "bad_request", "top_k 0"),
        ({"top_k": 6, "beam": BeamPolicy((8, 8))}, "bad_request", "top_k 6"),
        ({"beam": BeamPolicy((8, 2))}, "bad_request", "top_k 3 is above"),
        ({"max_items_per_sid": 0}, "bad_request", "max_items_per_sid"),
        ({"score": "loudness"}, "bad_request", "loudness"),
        ({"history": None}, "bad_request", "exactly one"),
        ({"tokens": tokens(1)}, "bad_request", "exactly one"),
        ({"history": None, "tokens": tokens()}, "bad_request", "at least one"),
        ({"history": None, "tokens": tokens(1, 26)}, "bad_request", "vocabulary"),
        ({"history": None, "tokens": tokens(-1)}, "bad_request", "vocabulary"),
        ({"history": None, "tokens": tokens(1), "exclude_history": True}, "bad_request", "exclude_history"),
        ({"history": None, "tokens": tokens(*[1] * 129)}, "too_large", "129"),
        ({"template": "nowhere"}, "bad_request", "nowhere"),
    ],
)
def test_what_can_never_be_answered_is_refused_with_its_reason(
    admission: Admission, changes: dict[str, Any], code: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        admission.check(request(**changes))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"history": None, "tokens": tokens(*[25] * 128)},
        {"beam": BeamPolicy((1, 3), margin=float("inf"), min_width=99)},
        {"beam": BeamPolicy((8, 8), margin=0.0), "top_k": 5},
    ],
)
def test_what_can_be_answered_is_admitted(admission: Admission, changes: dict[str, Any]) -> None:
    admission.check(request(**changes))
