"""Which requests of one user share a run, and what each of them gets of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consumer.histories.operation import UserKey
from consumer.serving.batcher import Batcher
from consumer.serving.coalesce import cut, run_key, shared, sharing
from consumer.serving.cost_model import UNKNOWN, CostModel, Prior
from consumer.serving.load_settings import LoadSettings
from consumer.serving.settings import BatchSettings
from engine.request import BeamPolicy, RecallResult, TagFilter
from tests.consumer.queued_item import Item, request

USER = UserKey("t", "u")


def result(count: int, *, exhausted: bool = False) -> RecallResult:
    return RecallResult(
        items=np.arange(count),
        scores=-np.arange(count, dtype=np.float32),
        model="m",
        catalog="v1",
        beam_widths=(8, 8, 8),
        exhausted=exhausted,
        sids=np.zeros((count, 3), dtype=np.int32),
        fields={"title": [str(n) for n in range(count)]},
    )


def test_history_and_top_k_may_differ() -> None:
    assert run_key(USER, request(events=3, top_k=2)) == run_key(USER, request(events=9, top_k=5))


@pytest.mark.parametrize(
    "other",
    [
        {"beam": BeamPolicy((4, 4, 4))},
        {"score": "legal"},
        {"template": "search"},
        {"context": {"hour": 3}},
        {"max_items_per_sid": 1},
        {"exclude": np.array([4])},
        {"exclude_history": True},
        {"filter": TagFilter(any=("a",))},
        {"catalog": "v2"},
        {"return_sids": True},
        {"return_fields": ("title",)},
    ],
)
def test_whatever_else_differs_keeps_requests_apart(other: dict[str, Any]) -> None:
    assert run_key(USER, replace(request(), **other)) != run_key(USER, request())


def test_other_users_no_user_and_ready_prompts_share_nothing() -> None:
    assert run_key(USER, request()) != run_key(UserKey("t", "w"), request())
    assert run_key(USER, request()) != run_key(UserKey("another topic", "u"), request()), "it has its own histories"
    assert run_key(None, request()) is None
    assert run_key(USER, replace(request(), history=None, tokens=np.arange(3, dtype=np.int32))) is None


def test_the_newest_runs_for_the_greediest() -> None:
    old, new = request(events=3, top_k=7), request(events=4, top_k=2)
    run = shared([old, new])
    assert (run.history is new.history, run.top_k) == (True, 7)
    assert shared([new, old]) is old


def test_each_gets_its_own_number_of_items() -> None:
    few = cut(result(7), 2)
    assert few.items.tolist() == [0, 1]  # type: ignore[union-attr]  # an array
    assert (len(few.scores), few.sids is not None and few.sids.shape, few.fields) == (2, (2, 3), {"title": ["0", "1"]})


def test_only_who_wants_more_than_there_is_hears_that_the_catalog_is_exhausted() -> None:
    everything = result(5, exhausted=True)
    assert cut(everything, 7).exhausted
    assert not cut(everything, 5).exhausted
    assert not cut(everything, 3).exhausted


def test_one_that_must_not_see_its_history_is_served_only_by_a_run_that_knows_all_of_it() -> None:
    kept = replace(request(), history=np.array([1, 2]), exclude_history=True)
    lost = replace(kept, history=np.array([0, 1]))
    newest = replace(kept, history=np.array([1, 2, 3]))
    assert sharing([lost, kept, newest]) == [1, 2]
    assert sharing([request(3), request(1)]) == [0, 1]


def test_a_run_answers_all_that_wait_for_it_and_the_others_get_their_own() -> None:
    made: Batcher[Item] = Batcher(BatchSettings(max_requests=4), LoadSettings(), CostModel(UNKNOWN))
    first, other, newest = Item(run_key="u"), Item(), Item(run_key="u", asked=request(events=9))
    made.add([first, other, newest])
    batch = made.take(0.0, idle=True)
    assert batch is not None
    assert [run.items for run in batch.runs] == [(first, newest), (other,)]
    assert batch.runs[0].variant.request is newest.asked
    assert (len(made), made.tokens) == (0, 0)


def test_those_that_share_a_run_are_not_turned_away_in_vain() -> None:
    costs = CostModel(Prior(0.0, token=1.0, known=True))
    made: Batcher[Item] = Batcher(BatchSettings(max_requests=4), LoadSettings(headroom=0.0), costs)
    first, *mates = [Item(tokens=2, deadline=10.0, run_key="u") for _ in range(4)]
    single = [Item(tokens=2, deadline=10.0) for _ in range(5)]
    made.add([first, *single, *mates])
    made.relieve(0.0)
    assert [gone.item for gone in made.turned_away()] == single[4:]
