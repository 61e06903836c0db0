"""What the cost model learns, how fast, and what does not mislead it."""

from collections.abc import Callable

import numpy as np
import pytest

from consumer.serving.cost_model import CostModel, Prior, Work

PRIOR = Prior(0.01, 1e-6, 1e-9, 1e-6, 1e-9)
Batch = Callable[[np.random.Generator], Work]


def mixed(random: np.random.Generator) -> Work:
    requests = [
        Work.of(float(random.integers(100, 5_000)), float(random.integers(32, 512)))
        for _ in range(random.integers(1, 9))
    ]
    total = Work()
    for request in requests:
        total += request
    return total


def same(random: np.random.Generator) -> Work:
    total = Work()
    for _ in range(int(random.integers(1, 9))):
        total += Work.of(1_000, 256)
    return total


def truth(work: Work, speed: float = 1.0) -> float:
    return speed * (0.004 + 5e-6 * work.tokens + 3e-10 * work.token_keys + 8e-6 * work.rows + 5e-10 * work.row_keys)


def trained(batch: Batch, batches: int, noise: float = 0.0, seed: int = 0) -> tuple[CostModel, np.random.Generator]:
    model, random = CostModel(PRIOR), np.random.default_rng(seed)
    for _ in range(batches):
        work = batch(random)
        model.observe("level", work, truth(work) * float(random.lognormal(0, noise)))
    return model, random


def worst(model: CostModel, batch: Batch, random: np.random.Generator, speed: float = 1.0) -> float:
    works = [batch(random) for _ in range(200)]
    return max(abs(model.predict("level", work) / truth(work, speed) - 1) for work in works)


def test_a_request_costs_only_the_tokens_that_are_not_resident() -> None:
    assert Work.of(5_000, 256, resident=4_980).tokens == 20
    assert Work.of(5_000, 256, resident=4_980).row_keys == Work.of(5_000, 256).row_keys
    assert Work.of(1_000, 1).token_keys == 1_000 * 500


def test_before_anything_is_measured_the_prior_speaks_and_is_not_trusted_unless_the_device_is_known() -> None:
    assert CostModel(PRIOR).predict("level", Work(tokens=1_000)) == pytest.approx(0.011)
    assert not CostModel(PRIOR).trusted("level")
    assert CostModel(Prior(0.01, known=True)).trusted("level")


def test_one_batch_puts_a_prior_right_that_is_wrong_by_a_factor() -> None:
    model = CostModel(Prior(1.0, 1e-2))
    model.observe("level", Work(tokens=100), 0.002)
    assert model.predict("level", Work(tokens=300)) == pytest.approx(0.004)


@pytest.mark.parametrize("batch", [mixed, same])
def test_it_converges_on_mixed_and_on_uniform_traffic(batch: Batch) -> None:
    model, random = trained(batch, 200)
    assert worst(model, batch, random) < 0.12
    assert model.trusted("level")


def test_noise_is_averaged() -> None:
    model, random = trained(mixed, 400, noise=0.1)
    assert worst(model, mixed, random) < 0.15
    assert 0.04 < model.error("level") < 0.2


def test_single_outliers_move_it_little() -> None:
    model, random = trained(mixed, 200, noise=0.02)
    for _ in range(3):
        work = mixed(random)
        model.observe("level", work, 30 * truth(work))
        for _ in range(10):
            work = mixed(random)
            model.observe("level", work, truth(work))
    assert worst(model, mixed, random) < 0.2


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_it_follows_a_device_that_became_slower_or_faster(speed: float) -> None:
    model, random = trained(mixed, 200, noise=0.02)
    for _ in range(60):
        work = mixed(random)
        model.observe("level", work, truth(work, speed))
    assert worst(model, mixed, random, speed) < 0.15


def test_uniform_traffic_does_not_spoil_what_it_says_of_other_traffic_for_long() -> None:
    model, random = trained(same, 2_000, noise=0.05)
    for _ in range(30):
        work = mixed(random)
        model.observe("level", work, truth(work))
    assert worst(model, mixed, random) < 0.2


def test_more_work_never_costs_less() -> None:
    model, _ = trained(mixed, 100, noise=0.3)
    base = Work.of(1_000, 256)
    for more in (Work(tokens=1e4), Work(token_keys=1e7), Work(rows=1e3), Work(row_keys=1e6)):
        assert model.predict("level", base + more) >= model.predict("level", base)


def test_each_score_mode_learns_for_itself() -> None:
    model = CostModel(PRIOR)
    for _ in range(5):
        model.observe("vocab", Work(tokens=1_000), 1.0)
    assert model.predict("vocab", Work(tokens=1_000)) == pytest.approx(1.0)
    assert model.predict("level", Work(tokens=1_000)) == pytest.approx(0.011)
    assert list(model.errors()) == ["vocab"]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_teaches_nothing(seconds: float) -> None:
    costs = CostModel(Prior(1.0))
    costs.observe("level", Work.of(10, 10), seconds)
    assert (costs.fixed("level"), costs.errors()) == (1.0, {})


def test_work_that_is_no_number_teaches_nothing() -> None:
    costs = CostModel(Prior(1.0, token=1.0))
    costs.observe("level", Work(tokens=float("nan")), 1.0)
    assert (costs.fixed("level"), costs.errors()) == (1.0, {})


@pytest.mark.parametrize("factor", [0.001, 0.03, 30.0, 1_000.0])
def test_a_first_batch_that_was_an_exception_is_forgotten_soon(factor: float) -> None:
    random, costs = np.random.default_rng(1), CostModel(PRIOR)
    costs.observe("level", first := mixed(random), factor * truth(first))
    for _ in range(20):
        costs.observe("level", work := mixed(random), truth(work))
    works = [mixed(random) for _ in range(20)]
    assert [costs.predict("level", work) for work in works] == pytest.approx([truth(work) for work in works], rel=0.5)
