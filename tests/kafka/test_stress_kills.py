"""Members die at random under load; afterwards the topics must show that the contract was kept."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import Installation
from tests.kafka.checker import Verdict
from tests.kafka.fleet import Group, group
from tests.kafka.load import wait_until
from tests.kafka.members import ServeProcess

pytestmark = [pytest.mark.kafka, pytest.mark.stress, pytest.mark.timeout(7200)]

MEMBERS = 3
SESSION_S = 3
STAGES_S = 60.0
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


class Killer:
    """Kills members of a group, each while its requests stand in several stages, and starts others in their place."""

    def __init__(self, target: Group, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._group = target
        self._random = random.Random(seed)
        self._leaving: list[ServeProcess] = []

    def kill_one(self) -> None:
        """By SIGTERM, SIGKILL, or the second soon after the first."""
        slot, victim = self._choose()
        how = self._random.choice(("term", "kill", "term, then kill"))
        self.kills[how] += 1
        if how == "kill":
            victim.process.kill()
        else:
            victim.process.terminate()
        if how == "term, then kill":
            time.sleep(self._random.uniform(0, 0.3))
            victim.process.kill()
        if how == "term":
            self._leaving.append(victim)
        self._group.members[slot] = self._group.member()
        time.sleep(self._random.uniform(0, 0.5))

    def check_clean_ends(self) -> None:
        """Who was asked to end did so by itself, with code 0."""
        for member in self._leaving:
            assert member.ended(60) == 0, member.last_words()

    def _choose(self) -> tuple[int, ServeProcess]:
        deadline = time.monotonic() + STAGES_S
        while True:
            slots = list(enumerate(self._group.members))
            self._random.shuffle(slots)
            for slot, member in slots:
                stages = member.stages() if member.ready() else None
                if stages is not None and stages.several:
                    return slot, member
            assert time.monotonic() < deadline, "no member has requests in several stages"
            time.sleep(0.02)


@BOTH
def test_random_kills_under_load(broker: KafkaCluster, tmp_path: Path, kills: int, seed: int, protocol: str) -> None:
    verdict = run(broker, tmp_path, kills, seed, (f"--kafka.group_protocol={protocol}",), atomic=False)
    assert verdict.kept, str(verdict)


@BOTH
def test_random_kills_under_load_with_exactly_once_delivery(
    installation: Installation, tmp_path: Path, kills: int, seed: int, protocol: str
) -> None:
    """On a broker that soon ends the transactions of the killed: its readers wait for that."""
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    flags = (
        f"--kafka.group_protocol={protocol}",
        "--kafka.delivery=exactly-once",
        "--kafka.transaction_timeout_ms=4000",
    )
    with KafkaCluster(installation, tmp_path / "broker", options=soon) as cluster:
        verdict = run(cluster, tmp_path, kills, seed, flags, atomic=True)
    assert verdict.exact, str(verdict)


def run(broker: KafkaCluster, tmp_path: Path, kills: int, seed: int, more: Sequence[str], *, atomic: bool) -> Verdict:
    """Kill so many under load, end the others and judge."""
    flags = (
        f"--kafka.session_timeout_ms={SESSION_S * 1000}",
        f"--kafka.consumer_session_timeout_ms={SESSION_S * 1000}",
        "--kafka.heartbeat_interval_ms=300",
        "--batch.max_requests=4",
        "--recall.deadline_ms=60000",
        "--batch.commit_interval_ms=20",
        *more,
    )
    with group(broker, tmp_path, *flags) as each:
        each.members = [each.member() for _ in range(MEMBERS)]
        each.await_ready()
        load = each.load(rate=400, outstanding=240, odd=0.04, seed=seed)
        killer = Killer(each, seed)
        try:
            load.start()
            wait_until(lambda: load.answered > 200, 60, lambda: f"{load.answered} answered")
            for _ in range(kills):
                killer.kill_one()
            load.stop()
            each.await_answers(load)
        finally:
            load.close()
        killer.check_clean_ends()
        assert each.stop() == [0] * MEMBERS
        verdict = each.judge(atomic=atomic)
        print(f"{dict(killer.kills)} kills; {verdict}")  # noqa: T201 - shown by pytest -rP, the run's record
        assert verdict.requests == load.sent
        assert verdict.uncommitted == 0
        assert sum(killer.kills.values()) == kills
        return verdict
