"""What only time or repetition shows: many rebalances, long pauses, drained partitions."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from deploy.kafka.cluster import KafkaCluster
from tests.kafka.fleet import Group, group
from tests.kafka.load import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.stress, pytest.mark.timeout(600)]

REBALANCES = 20


def test_many_rebalances_leave_liveness_true_and_what_is_drained_has_no_lag(
    broker: KafkaCluster, tmp_path: Path
) -> None:
    with group(broker, tmp_path, "--kafka.heartbeat_interval_ms=300") as each:
        each.members = [each.member()]
        (member,) = each.members
        each.await_ready()
        load = each.load(rate=50, outstanding=1_000)
        faults = []
        try:
            load.start()
            for _ in range(REBALANCES):
                visit(each)
                faults += member.faults()
                wait_until(lambda: member.owned() == 6, 30, member.last_words)
                faults += member.faults()
            load.stop()
            each.await_answers(load)
        finally:
            load.close()
        assert faults == []
        wait_until(lambda: member.lag() == (0, 0.0), 30, lambda: f"lag {member.lag()}")
        assert each.stop() == [0]
        verdict = each.judge()
        assert verdict.kept, str(verdict)


def visit(each: Group) -> None:
    """Join the group until some partitions are ours, then leave it."""
    visitor = Consumer(
        {
            "bootstrap.servers": each.cluster.bootstrap_servers,
            "group.id": each.name,
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
        }
    )
    try:
        visitor.subscribe([each.topics[0]])
        wait_until(lambda: visitor.poll(0.05) or visitor.assignment(), 30, lambda: "no partitions")
    finally:
        visitor.close()
