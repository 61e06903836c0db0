"""Load from half to three times what the engine can do, and bursts, in simulated time."""

import numpy as np
import pytest

from consumer.serving.cost_model import Prior, Work
from consumer.serving.load_settings import LoadSettings
from tests.consumer.load_simulation import Simulation, Told, Truth, poisson
from tests.consumer.queued_item import Item, request

SECONDS, WARM = 8.0, 2.0


def large_model(work: Work) -> float:
    """Requests cost most: a large model on a GPU."""
    return 0.007 + 6e-6 * work.tokens + 1.7e-5 * work.rows


def small_model(work: Work) -> float:
    """Batches cost most: a small model on a CPU."""
    return 0.030 + 1e-6 * work.tokens + 6e-6 * work.rows


def capacity(truth: Truth) -> float:
    """Requests a second in full batches."""
    full = Work()
    for _ in range(16):
        full += Work.of(1_000, 256)
    return 16 / truth(full)


def item(at: float, deadline_s: float, random: np.random.Generator, **fields: object) -> Item:
    events = int(random.integers(500, 1_500))
    asked = request(events, width=256, top_k=100)
    return Item(tokens=events, admitted=at, deadline=at + deadline_s, asked=asked, **fields)  # type: ignore[arg-type]


def load_of(
    truth: Truth, times: float, deadline_s: float, settings: LoadSettings | None = None, **batch: float
) -> Told:
    rate = times * capacity(truth)
    arrivals = poisson(lambda _: rate, SECONDS, lambda at, random: item(at, deadline_s, random))
    told = Simulation(truth, load=settings).run(arrivals)
    served = len(told.answered) + len(told.late) + len(told.turned_away) + len(told.expired)
    assert served == len(arrivals)  # every request is told something
    return told


CASES = [(large_model, 2.0), (large_model, 0.5), (small_model, 1.0), (small_model, 0.3)]


@pytest.mark.parametrize(("truth", "deadline_s"), CASES)
def test_goodput_stays_at_its_peak_the_queue_bounded_and_latency_under_the_deadline(
    truth: Truth, deadline_s: float
) -> None:
    sweep = {times: load_of(truth, times, deadline_s) for times in (0.5, 1.0, 1.5, 2.0, 3.0)}
    goodput = {times: told.goodput(WARM) for times, told in sweep.items()}
    peak = max(goodput.values())
    assert all(goodput[times] >= 0.9 * peak for times in (1.0, 1.5, 2.0, 3.0))
    assert not sweep[0.5].turned_away
    assert len(sweep[0.5].late) + len(sweep[0.5].expired) == 0
    for told in sweep.values():
        assert told.longest_queue <= 1.5 * capacity(truth) * deadline_s + 64
        assert len(told.late) + len(told.expired) <= 0.01 * len(told.answered)
        assert told.latencies()[-1] < deadline_s


def test_without_turning_away_the_same_load_ruins_goodput() -> None:
    kept = load_of(small_model, 2.0, 0.3)
    ruined = load_of(small_model, 2.0, 0.3, LoadSettings(turn_away=False))
    assert ruined.goodput(WARM) < 0.5 * kept.goodput(WARM)


def test_who_is_turned_away_hears_it_long_before_the_deadline_has_passed() -> None:
    assert not load_of(large_model, 2.0, 2.0).expired


def test_the_ladder_answers_more_and_gives_up_nothing_where_there_is_time() -> None:
    ladder = LoadSettings(degrade=("beam", "history"))
    easy, hard = load_of(large_model, 0.8, 2.0, ladder), load_of(large_model, 1.5, 2.0, ladder)
    assert not easy.degraded
    assert hard.degraded
    assert hard.goodput(WARM) > 1.2 * load_of(large_model, 1.5, 2.0).goodput(WARM)


def test_bursts_of_ten_times_the_load_are_cut_down_to_what_can_be_done() -> None:
    rate = capacity(large_model)

    def bursty(moment: float) -> float:
        return rate * (5.0 if moment % 4 < 0.5 else 0.5)

    arrivals = poisson(bursty, 16.0, lambda at, random: item(at, 1.0, random))
    told = Simulation(large_model).run(arrivals)
    assert len(told.late) + len(told.expired) <= 0.01 * len(arrivals)
    assert told.latencies()[-1] < 1.0
    in_time = sum(min(rate * 1.0, count) for count in ([5.0 * 0.5 * rate] * 4)) + 0.5 * rate * 3.5 * 4
    assert len(told.answered) >= 0.8 * in_time


def test_a_low_priority_gives_way_under_load_and_is_answered_when_there_is_time() -> None:
    def mixed(at: float, random: np.random.Generator) -> Item:
        return item(at, 1.0, random, priority=9 if random.random() < 0.5 else 1)

    def share(times: float, priority: int) -> float:
        arrivals = poisson(lambda _: times * capacity(large_model), SECONDS, mixed)
        told = Simulation(large_model).run(arrivals)
        asked = sum(each.priority == priority for each in arrivals)
        return sum(each.priority == priority for each, _ in told.answered) / asked

    assert share(0.7, 1) == 1.0
    assert share(1.8, 9) > 0.98
    assert 0.02 < share(1.8, 1) < 0.3


@pytest.mark.parametrize(("shares", "wanted"), [({}, 0.5), ({"meek": 1.0, "loud": 3.0}, 0.25)])
def test_a_caller_gets_its_share_whatever_the_other_asks_for(shares: dict[str, float], wanted: float) -> None:
    rate = capacity(large_model)

    def two(at: float, random: np.random.Generator) -> Item:
        return item(at, 1.0, random, caller="meek" if random.random() < 0.2 else "loud")

    told = Simulation(large_model, load=LoadSettings(shares=shares)).run(poisson(lambda _: 4 * rate, SECONDS, two))
    meek = sum(each.caller == "meek" for each, at in told.answered if at > WARM)
    all_of_them = sum(at > WARM for _, at in told.answered)
    assert meek / all_of_them == pytest.approx(wanted, abs=0.08)
    assert any(quota for each, quota in told.turned_away if each.caller == "loud")


def test_a_caller_that_asks_for_less_than_its_share_loses_nothing_to_a_flood() -> None:
    rate = capacity(large_model)

    def two(at: float, random: np.random.Generator) -> Item:
        loud = random.random() < 0.9
        return item(at, 1.0, random, caller="loud" if loud else "meek", priority=9 if loud else 5)

    arrivals = poisson(lambda _: 3 * rate, SECONDS, two)
    told = Simulation(large_model).run(arrivals)
    meek = [each for each in arrivals if each.caller == "meek"]
    assert sum(each.caller == "meek" for each, _ in told.answered) >= 0.97 * len(meek)


def test_one_caller_alone_may_use_all_that_there_is() -> None:
    told = load_of(large_model, 1.0, 2.0, LoadSettings(shares={"other": 100.0}))
    assert not any(quota for _, quota in told.turned_away)


def test_a_prior_that_is_wrong_by_far_does_not_stop_the_service() -> None:
    arrivals = poisson(lambda _: 0.5 * capacity(large_model), SECONDS, lambda at, random: item(at, 1.0, random))
    told = Simulation(large_model, prior=Prior(10.0, 1e-2, known=True)).run(arrivals)
    assert told.goodput(WARM) > 0.45 * capacity(large_model)


def test_a_storm_of_cold_contexts_costs_few_of_those_whose_context_is_resident_their_answer() -> None:
    """Half as much again as can be done: a warm request takes a twentieth of what a cold one does."""

    def visit(at: float, tokens: int, **fields: str) -> Item:
        asked = request(5_000, width=64, top_k=64)
        return Item(tokens=tokens, admitted=at, deadline=at + 1.0, asked=asked)

    warm = poisson(lambda _: 360.0, SECONDS, lambda at, _: visit(at, 20))
    cold = poisson(lambda at: 27.0 if at > WARM else 0.0, SECONDS, lambda at, _: visit(at, 5_000), seed=2)
    told = Simulation(large_model).run(sorted([*warm, *cold], key=lambda each: each.admitted))
    answered = [item for item, _ in told.answered]
    assert sum(item.tokens == 20 for item in answered) >= 0.98 * len(warm)
    assert sum(item.tokens == 5_000 for item in answered) >= 0.3 * len(cold)
