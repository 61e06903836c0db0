"""A connection to the broker that is half open: nothing comes back, nothing is closed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import Installation
from tests.black_hole import BlackHole
from tests.consumer.serving_harness import Member
from tests.consumer.waiting import eventually
from tests.kafka.access import PASSWORD, USER, login
from tests.kafka.commit_log import decreases
from tests.kafka.real_harness import RealHarness, real_harness

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

SOCKET_TIMEOUT_MS = 2_000


@dataclass(frozen=True)
class Behind:
    """A broker whose members come through a proxy, and whose test does not."""

    made: RealHarness
    hole: BlackHole

    def member(self, **batch: Any) -> Member:
        through = {
            "bootstrap_servers": f"127.0.0.1:{self.hole.port}",
            "security_protocol": "sasl_plaintext",
            "ssl_ca_location": None,
            "client_options": {"socket.timeout.ms": SOCKET_TIMEOUT_MS},
        }
        return self.made.member(kafka=login(self.made, **through), commit_interval_ms=0, **batch)


@pytest.fixture(params=["classic", "consumer"])
def behind(installation: Installation, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Behind]:
    options: dict[str, str] = {}
    cluster = KafkaCluster(installation, tmp_path / "behind", secured=True, options=options)
    (node,) = cluster.nodes
    hole = BlackHole(node.sasl_port)
    options["advertised.listeners"] = f"PLAINTEXT://{node.address},SASL_PLAINTEXT://127.0.0.1:{hole.port}"
    try:
        with cluster:
            cluster.add_user(USER, PASSWORD)
            with real_harness(cluster) as made:
                made.protocol = request.param
                yield Behind(made, hole)
    finally:
        hole.close()


def test_half_open_connections_hang_nothing_and_the_request_is_answered_after(behind: Behind) -> None:
    made = behind.made
    member = behind.member()
    made.send("before")
    made.flush()
    made.replies.wait(1)
    eventually(lambda: made.committed() == 1)
    member.engine.gate.clear()
    made.send("in flight")
    made.flush()
    eventually(member.engine.busy.is_set)
    behind.hole.swallow()
    member.engine.gate.set()
    made.send("after")
    made.flush()

    def answered() -> bool:
        assert member.snapshot().tick_age < 2.0, "the intake loop turns"
        return {"in flight", "after"} <= {received.reply.request_id for received in made.replies.poll()}

    eventually(answered, 60.0)
    eventually(lambda: made.committed() == 3, 30.0)
    assert member.loop.failure is None
    assert decreases(made.commits()) == []


def test_stopping_over_half_open_connections_keeps_to_the_budget(behind: Behind) -> None:
    codes: list[int] = []
    member = behind.member(drain_s=1.0, close_s=2.0, end_process=codes.append)
    behind.made.send("r1")
    behind.made.flush()
    behind.made.replies.wait(1)
    behind.hole.swallow()
    begun = time.monotonic()
    assert member.stop() == 0
    assert time.monotonic() - begun < 6.0
    assert codes == []
