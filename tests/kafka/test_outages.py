"""Brokers that die: shorter than the limit nothing is lost, longer ends the process without a commit."""

import time
from collections.abc import Iterator

import pytest

from deploy.kafka.cluster import KafkaCluster
from tests.consumer.waiting import eventually
from tests.kafka.commit_log import decreases
from tests.kafka.real_harness import RealHarness, real_harness

pytestmark = pytest.mark.kafka

RECOVERY_S = 60.0


@pytest.fixture
def mortal(made: RealHarness) -> Iterator[RealHarness]:
    """On the broker of all tests, which runs again afterwards."""
    yield made
    if not made.cluster.running(1):
        made.cluster.start_broker(1)


def answered(made: RealHarness) -> set[str | None]:
    return {received.reply.request_id for received in made.replies.poll()}


def test_a_killed_broker_that_comes_back_within_the_limit_costs_nothing(mortal: RealHarness) -> None:
    member = mortal.member(commit_interval_ms=0)
    mortal.send("before")
    mortal.flush()
    eventually(lambda: mortal.committed() == 1)
    member.engine.gate.clear()
    for number in range(10):
        mortal.send(f"r{number}")
    mortal.flush()
    eventually(lambda: member.snapshot().in_flight == 10)
    mortal.cluster.kill_broker(1)
    eventually(lambda: member.events.count["consumer:_ALL_BROKERS_DOWN"])
    member.engine.gate.set()
    eventually(lambda: member.events.recalled(11))
    assert member.snapshot().in_flight == 10, "nobody has confirmed their replies"
    mortal.cluster.start_broker(1)
    eventually(lambda: len(answered(mortal)) == 11, RECOVERY_S)
    eventually(lambda: mortal.committed() == 11, RECOVERY_S)
    assert member.loop.failure is None
    assert decreases(mortal.commits()) == []


def test_an_outage_beyond_the_limit_ends_the_process_and_the_next_one_answers(mortal: RealHarness) -> None:
    kafka = mortal.kafka(brokers_down_limit_s=2.0)
    codes: list[int] = []
    member = mortal.member(kafka=kafka, commit_interval_ms=0, close_s=5.0, end_process=codes.append)
    member.engine.gate.clear()
    for number in range(5):
        mortal.send(f"r{number}")
    mortal.flush()
    eventually(lambda: member.snapshot().in_flight == 5)
    mortal.cluster.kill_broker(1)
    member.engine.gate.set()
    failure = eventually(lambda: member.loop.failure, 30.0)
    assert "no broker can be reached" in failure
    assert member.snapshot().not_ready
    assert member.stop() == 1
    mortal.cluster.start_broker(1)
    assert mortal.committed() in (0, -1001)
    mortal.member()
    eventually(lambda: answered(mortal) == {f"r{number}" for number in range(5)}, RECOVERY_S)
    eventually(lambda: mortal.committed() == 5, RECOVERY_S)


def test_stopping_while_the_broker_is_dead_keeps_to_the_budget(mortal: RealHarness) -> None:
    codes: list[int] = []
    member = mortal.member(drain_s=1.0, close_s=5.0, end_process=codes.append)
    member.engine.gate.clear()
    mortal.send("r1")
    mortal.flush()
    eventually(lambda: member.snapshot().in_flight == 1)
    mortal.cluster.kill_broker(1)
    member.engine.gate.set()
    begun = time.monotonic()
    assert member.stop() == 0
    assert time.monotonic() - begun < 8.0
    assert codes == []
    mortal.cluster.start_broker(1)
    mortal.member()
    eventually(lambda: answered(mortal) == {"r1"}, RECOVERY_S)


@pytest.mark.timeout(240)
def test_one_broker_of_three_may_die_under_load(three_brokers: KafkaCluster) -> None:
    with real_harness(three_brokers, partitions=4, config={"min.insync.replicas": "2"}) as made:
        member = made.member(commit_interval_ms=0)
        eventually(lambda: len(member.owned()) == 4)
        sent = 0

        def send_some() -> None:
            nonlocal sent
            for _ in range(20):
                made.send(f"r{sent}", partition=sent % 4)
                sent += 1

        for victim in (1, 2):
            send_some()
            three_brokers.kill_broker(victim)
            send_some()
            made.flush()
            eventually(lambda: len(answered(made)) == sent, RECOVERY_S)
            three_brokers.start_broker(victim)
        eventually(lambda: sum(made.committed(number) for number in range(4)) == sent, RECOVERY_S)
        assert member.loop.failure is None
        assert decreases(made.commits()) == [], made.commits()
