"""How old the oldest unfinished request is, by a clock that the test turns."""

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from consumer.serving import intake
from tests.consumer.serving_harness import Harness, Member, harness
from tests.consumer.waiting import eventually

MINUTES_S = 600.0


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness(partitions=2) as each:
        yield each


def ages(member: Member) -> dict[int, tuple[int | None, float]]:
    """Of each partition, its lag in records and in seconds."""
    return {each.partition: (each.lag, each.lag_seconds) for each in member.snapshot().partitions}


def test_a_partition_that_is_idle_for_minutes_has_no_age_and_one_that_is_stuck_has(
    made: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = made.member()
    eventually(lambda: member.owned() == {0, 1}, 40)
    made.send("done", partition=0)
    made.flush()
    made.replies.wait(1)
    member.engine.gate.clear()
    made.send("stuck", partition=1)
    made.flush()
    eventually(lambda: ages(member).get(1, (0, 0.0))[0] == 1 and ages(member)[0] == (0, 0.0))
    later = SimpleNamespace(time=lambda: time.time() + MINUTES_S)
    monkeypatch.setattr(intake, "time", later)
    eventually(lambda: ages(member)[1][1] >= MINUTES_S)
    assert ages(member)[0] == (0, 0.0)
