"""A rolling restart and a scale-down under steady load: how long a partition stands still."""

import json
import platform
import time
from pathlib import Path

import pytest

from deploy.kafka.cluster import KafkaCluster
from tests.kafka.fleet import PARTITIONS, Group, group
from tests.kafka.load import Load, wait_until
from tests.kafka.silence import longest_silences

pytestmark = [pytest.mark.kafka, pytest.mark.stress, pytest.mark.timeout(900)]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RATE = 120.0
LIMIT_S = 5.0
HEARTBEAT_MS = 1_000
SETTLED_S = 3.0
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])
FLAGS = (f"--kafka.heartbeat_interval_ms={HEARTBEAT_MS}", "--batch.max_requests=8")


def steady(each: Group, load: Load) -> None:
    """Let the load run undisturbed for a while."""
    begun = load.answered
    wait_until(lambda: load.answered > begun + RATE * SETTLED_S, 60, lambda: f"{load.answered} answered")


@BOTH
def test_a_rolling_restart_of_three_members(broker: KafkaCluster, tmp_path: Path, record: bool, protocol: str) -> None:
    with group(broker, tmp_path, *FLAGS, f"--kafka.group_protocol={protocol}") as each:
        each.members = [each.member() for _ in range(3)]
        each.await_ready()
        load = each.load(rate=RATE, outstanding=10_000)
        away = []
        try:
            load.start()
            steady(each, load)
            for slot in range(3):
                leaving = each.members[slot]
                leaving.process.terminate()
                begun = time.monotonic()
                assert leaving.ended(60) == 0, leaving.last_words()
                each.members[slot] = each.member()
                each.await_ready()
                away.append(time.monotonic() - begun)
                steady(each, load)
            load.stop()
            each.await_answers(load)
        finally:
            load.close()
        assert each.stop() == [0, 0, 0]
        verdict, silences = each.judge(), longest_silences(each.answers())
        print(f"{silences}; away {away}; {verdict}")  # noqa: T201 - shown by pytest -rP, the run's record
        assert verdict.kept, str(verdict)
        assert verdict.repeated == 0
        assert set(silences) == set(range(PARTITIONS))
        assert max(silences.values()) < LIMIT_S
        if record:
            write(protocol, silences, away, verdict.requests)


@BOTH
def test_a_member_that_leaves_does_not_disturb_the_others_partitions(
    broker: KafkaCluster, tmp_path: Path, protocol: str
) -> None:
    with group(broker, tmp_path, *FLAGS, f"--kafka.group_protocol={protocol}") as each:
        each.members = [each.member() for _ in range(3)]
        each.await_ready()
        wait_until(lambda: sum(member.owned() for member in each.members) == PARTITIONS, 30, lambda: "not spread")
        untouched = set(each.members[0].partitions()) | set(each.members[1].partitions())
        load = each.load(rate=RATE, outstanding=10_000)
        try:
            load.start()
            steady(each, load)
            leaving = each.members.pop()
            leaving.process.terminate()
            assert leaving.ended(60) == 0, leaving.last_words()
            steady(each, load)
            load.stop()
            each.await_answers(load)
        finally:
            load.close()
        assert each.stop() == [0, 0]
        verdict, silences = each.judge(), longest_silences(each.answers())
        print(f"{silences}, untouched {untouched}; {verdict}")  # noqa: T201 - shown by pytest -rP, the run's record
        assert verdict.kept, str(verdict)
        assert len(untouched) == 4
        assert max(silences[partition] for partition in untouched) < HEARTBEAT_MS / 1000


def write(protocol: str, silences: dict[int, float], away: list[float], requests: int) -> None:
    found = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one broker on the same busy machine",
        "members": 3,
        "partitions": PARTITIONS,
        "requests_per_s": RATE,
        "requests": requests,
        "assignor": "cooperative-sticky" if protocol == "classic" else "the brokers' own (KIP-848)",
        "heartbeat_ms": HEARTBEAT_MS,
        "limit_s": LIMIT_S,
        "longest_silence_s": silences,
        "sigterm_to_ready_again_s": [round(seconds, 2) for seconds in away],
    }
    name = "rolling_restart.json" if protocol == "classic" else "rolling_restart_consumer.json"
    (RESULTS / name).write_text(json.dumps(found, indent=1) + "\n")
