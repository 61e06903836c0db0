"""Stall detection: one partition standing still while the others flow."""

from consumer.service.progress import PartitionState, StallDetector

TOPIC = "recall.requests"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def partition(number: int, done: int, lag: int | None = 5) -> PartitionState:
    return PartitionState(TOPIC, number, done, lag)


def test_only_the_partition_that_stands_still_with_lag_is_stalled() -> None:
    clock = Clock()
    stalls = StallDetector(60.0, clock)
    for second in range(0, 61, 10):
        clock.now = second
        found = stalls.observe(
            [partition(0, done=second), partition(1, done=7), partition(2, 7, lag=0), partition(3, 7, None)]
        )
    assert found == ((TOPIC, 1),)


def test_progress_ends_a_stall() -> None:
    clock = Clock()
    stalls = StallDetector(60.0, clock)
    stalls.observe([partition(0, 7)])
    clock.now = 60.0
    assert stalls.observe([partition(0, 7)])
    clock.now = 61.0
    assert not stalls.observe([partition(0, 8)])


def test_lag_that_appears_after_an_idle_hour_is_no_stall() -> None:
    clock = Clock()
    stalls = StallDetector(60.0, clock)
    stalls.observe([partition(0, 7, lag=0)])
    clock.now = 3600.0
    assert not stalls.observe([partition(0, 7, lag=0)])
    clock.now = 3601.0
    assert not stalls.observe([partition(0, 7, lag=3)])


def test_a_partition_that_comes_back_starts_afresh() -> None:
    clock = Clock()
    stalls = StallDetector(60.0, clock)
    stalls.observe([partition(0, 7)])
    clock.now = 30.0
    stalls.observe([])
    clock.now = 65.0
    assert not stalls.observe([partition(0, 7)])
