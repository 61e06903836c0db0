"""What each step of the ladder takes from a request, and what it never takes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.cost_model import CostModel, Prior
from consumer.serving.ladder import Ladder, work_of
from consumer.serving.load_settings import LoadSettings, Step
from consumer.serving.order import arrivals
from consumer.serving.pace import Pace
from consumer.serving.settings import BatchSettings
from engine.request import BeamPolicy
from tests.consumer.queued_item import Item, request


def ladder(*steps: Step) -> Ladder:
    return Ladder(LoadSettings(degrade=steps))


def test_the_first_step_gives_up_nothing() -> None:
    asked = request(events=100, width=256, top_k=10)
    variant = ladder("beam", "history").variant(asked, 300, 0)
    assert (variant.request, variant.tokens, variant.given_up) == (asked, 300, ())


def test_a_history_that_cannot_become_shorter_costs_what_it_did() -> None:
    for events in (0, 1):
        asked = request(events=events)
        variant = ladder("history").variant(asked, 40, 1)
        assert (variant.request, variant.tokens, variant.work.tokens, variant.given_up) == (asked, 40, 40, ())


def test_without_settings_there_is_no_other_step() -> None:
    assert ladder().last == 0
    assert ladder("last_reply").last == 0


def test_steps_follow_in_their_own_order_and_add_up() -> None:
    steps = ladder("history", "beam")
    asked = request(events=100, width=256, top_k=10)
    first, second = steps.variant(asked, 300, 1), steps.variant(asked, 300, 2)
    assert (first.request.beam.widths, first.given_up) == ((128, 128, 128), ("beam",))
    assert second.given_up == ("beam", "history")
    assert second.request.history is not None
    assert second.request.history.tolist() == list(range(50, 100))  # type: ignore[union-attr]  # an array
    assert (second.tokens, second.work.tokens, second.work.rows) == (150, 150, 128)


def test_a_beam_never_becomes_narrower_than_top_k() -> None:
    asked = request(width=100, top_k=80)
    assert ladder("beam").variant(asked, 1, 1).request.beam.widths == (80, 80, 80)
    full = ladder("beam").variant(request(width=80, top_k=80), 1, 1)
    assert full.given_up == ()


def test_the_levels_of_a_schedule_keep_their_proportions_and_the_margin_stays() -> None:
    asked = replace(request(top_k=100), beam=BeamPolicy((20, 200, 900), margin=3.0, min_width=8))
    assert ladder("beam").variant(asked, 1, 1).request.beam == BeamPolicy((20, 100, 450), margin=3.0, min_width=8)


def test_what_the_whole_history_excluded_stays_excluded() -> None:
    asked = replace(request(events=4), exclude=np.array([77]), exclude_history=True)
    shorter = ladder("history").variant(asked, 12, 1).request
    assert shorter.history is not None
    assert set(np.asarray(shorter.exclude).tolist()) | set(np.asarray(shorter.history).tolist()) == {77, 0, 1, 2, 3}


def test_string_histories_are_cut_alike() -> None:
    asked = replace(request(), history=["a", "b", "c"], exclude=["z"], exclude_history=True)
    shorter = ladder("history").variant(asked, 9, 1).request
    assert (shorter.history, shorter.exclude) == (["b", "c"], ["z", "a"])


def test_a_ready_prompt_and_an_empty_history_are_not_cut() -> None:
    prompt = replace(request(), history=None, tokens=np.arange(10, dtype=np.int32))
    assert ladder("history").variant(prompt, 10, 1).given_up == ()
    assert ladder("history").variant(request(events=0), 2, 1).given_up == ()


def test_a_history_whose_context_is_resident_is_not_cut_for_that_would_cost_more() -> None:
    asked = replace(request(events=1_000), session="u")
    known = ladder("history").variant(asked, 20, 1)
    assert (known.given_up, known.work.tokens) == ((), 20)
    assert known.work.row_keys == pytest.approx(3 * 1_000 * known.work.rows)
    cold = ladder("history").variant(asked, 3_000, 1)
    assert (cold.given_up, cold.request.session) == (("history",), None)  # a short context must not replace a long one


@given(
    st.lists(
        st.builds(
            Item,
            tokens=st.integers(0, 600),
            asked=st.builds(
                request,
                events=st.integers(0, 200),
                width=st.integers(1, 512),
                session=st.sampled_from([None, "u"]),
                score=st.sampled_from(["level", "vocab"]),
            ),
        ),
        max_size=8,
    )
)
def test_what_comes_together_asks_for_the_work_of_each_and_starts_in_time_for_it(items: list[Item]) -> None:
    costs = CostModel(Prior(1.0, 1e-2, 1e-5, 1e-2, 1e-5, known=True))
    for key, each in enumerate(arrivals(items, 7, ladder(), Pace(costs, BatchSettings())), 7):
        asked, work = each.item.asked, work_of(each.item.asked, each.item.tokens)
        assert (each.item, each.key, each.request) == (items[key - 7], key, asked)
        assert (each.work, each.variant(0).work) == (work, work)
        assert each.rank == (-5, each.item.deadline - costs.foreseen(asked.score, work), key)
