"""What is fetched but not read stays bounded while reading is paused, however much waits."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from consumer.wire.outgoing import encode_request
from consumer.wire.settings import RecallDefaults
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.waiting import eventually
from tests.kafka.real_harness import RealHarness, real_harness

pytestmark = [pytest.mark.kafka, pytest.mark.stress, pytest.mark.timeout(300)]

PARTITIONS = 64
RECORDS, ITEMS = 400, 1_250
PAUSED_S = 30.0
BOUND = 130 << 20
"""The client fetches at most 64 MB ahead, in answers of up to 50 MB; the backlog is 256 MB."""


@pytest.fixture
def backlog(broker: KafkaCluster) -> Iterator[RealHarness]:
    """256 MB that wait in 64 partitions."""
    with real_harness(broker, partitions=PARTITIONS) as made:
        producer = Producer({"bootstrap.servers": made.bootstrap_servers})
        value = encode_request("r", {"history": list(range(ITEMS))})
        for number in range(PARTITIONS * RECORDS):
            producer.produce(made.requests, value, partition=number % PARTITIONS)
            producer.poll(0)
            if number % 5_000 == 0:
                producer.flush()
        assert producer.flush(60) == 0
        yield made


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_is_bounded_while_reading_is_paused(backlog: RealHarness) -> None:
    before = resident()
    patient = RecallDefaults(top_k=3, width=4, deadline_ms=600_000, max_deadline_ms=600_000)
    member = backlog.member(defaults=patient, max_in_flight=16, max_requests=1, pause_after_s=0.2, wait=False)
    member.engine.gate.clear()
    eventually(lambda: len(member.owned()) == PARTITIONS and member.snapshot().paused)
    begun, seen = time.monotonic(), []
    while time.monotonic() - begun < PAUSED_S:
        seen.append(resident() - before)
        time.sleep(0.2)
    assert member.snapshot().paused
    print(f"at most {max(seen) >> 20} MB more")  # noqa: T201 - shown by pytest -rP, the run's record
    assert max(seen) < BOUND
    assert member.loop.failure is None
