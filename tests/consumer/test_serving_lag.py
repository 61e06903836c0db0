"""How old the oldest unfinished request is, by a clock that the test turns."""

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from consumer.serving import intake_view
from consumer.wire.outgoing import encode_request
from tests.consumer.serving_harness import SILENT, Harness, Member, harness
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
    monkeypatch.setattr(intake_view, "time", later)
    eventually(lambda: ages(member)[1][1] >= MINUTES_S)
    assert ages(member)[0] == (0, 0.0)


def test_markers_of_transactions_are_no_lag(made: Harness) -> None:
    """They take offsets behind the last request, which nothing will ever read."""
    member = made.member()
    eventually(lambda: member.owned() == {0, 1}, 40)
    options = {"bootstrap.servers": made.bootstrap_servers, "transactional.id": "client"}
    client = Producer(options, logger=SILENT)
    client.init_transactions(20)
    for request_id in ("r1", "r2"):
        client.begin_transaction()
        client.produce(made.requests, encode_request(request_id, {"history": [1]}), key=b"u", partition=0)
        client.commit_transaction(20)
    made.replies.wait(2)
    eventually(lambda: made.committed() == 3)
    assert made.end_of(made.requests) == 4
    eventually(lambda: ages(member) == {0: (0, 0.0), 1: (0, 0.0)})
