"""Members with sessions are restarted one by one while their users come back: what is still answered in time."""

import json
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.card import commit
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.serve_harness import ITEMS, MODEL
from tests.kafka.fleet import PARTITIONS, REPLY_PARTITIONS, Group, group
from tests.kafka.load import wait_until
from tests.kafka.returning import ReturningUsers, Visit

pytestmark = [pytest.mark.kafka, pytest.mark.stress, pytest.mark.timeout(900)]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
WARM = replace(MODEL, max_history_items=650, history_drop=50)
USERS, RATE, DEADLINE_S = 400, 60.0, 2.0
LENGTHS = 300, 600
"""Items of a history: about 900 to 1,800 tokens."""
STEADY_S = 12.0
HEARTBEAT_MS = 1_000
LEAST = 0.9
"""Share of the visits of any restart that has to be answered in time."""

FLAGS = (
    f"--kafka.heartbeat_interval_ms={HEARTBEAT_MS}",
    "--batch.max_requests=8",
    "--histories.store=write-behind",
)


@dataclass(frozen=True)
class Phase:
    name: str
    begin: float
    end: float


@pytest.mark.parametrize("degrade", [(), ("beam", "history")], ids=["whole", "or less"])
def test_a_rolling_restart_of_warm_members_keeps_deadlines(
    broker: KafkaCluster, tmp_path: Path, record: bool, degrade: tuple[str, ...]
) -> None:
    """``degrade``: what the service may give up."""
    flags = (*FLAGS, f"--load.degrade={json.dumps(degrade)}")
    with group(broker, tmp_path, *flags, model=WARM, pages=4_096) as each:
        each.members = [each.member() for _ in range(3)]
        each.await_ready()
        users = ReturningUsers(
            broker.bootstrap_servers, each.topics[:2], PARTITIONS, REPLY_PARTITIONS, USERS, RATE, DEADLINE_S,
            ITEMS.tolist(), LENGTHS,
        )  # fmt: skip
        try:
            users.start()
            phases = list(restarts(each, users))
        finally:
            users.close()
        assert each.stop() == [0, 0, 0]
    rows = [row_of(phase, users.visits) for phase in phases]
    for row in rows:
        print(row)  # noqa: T201 - shown by pytest -rP, the run's record
    assert rows[0]["in_time"] == pytest.approx(1.0, abs=0.02)
    assert min(row["in_time"] for row in rows) >= LEAST
    assert sum(row["need_history"] for row in rows) == 0
    if record:
        write(degrade, rows, series(users.visits, phases[0].begin, phases[-1].end))


def restarts(each: Group, users: ReturningUsers) -> Iterator[Phase]:
    """Once everybody has been there: a steady while, then each restart and the while after it."""
    wait_until(lambda: len({visit.user for visit in users.visits if visit.at}) == USERS, 120, lambda: "not all came")
    yield steady("before")
    for slot in range(3):
        begun = time.monotonic()
        leaving = each.members[slot]
        leaving.process.terminate()
        assert leaving.ended(60) == 0, leaving.last_words()
        each.members[slot] = each.member()
        each.await_ready()
        yield Phase(f"restart {slot + 1}", begun, time.monotonic())
        yield steady(f"after {slot + 1}")


def steady(name: str) -> Phase:
    begun = time.monotonic()
    time.sleep(STEADY_S)
    return Phase(name, begun, time.monotonic())


def row_of(phase: Phase, visits: Sequence[Visit]) -> dict[str, Any]:
    here = [visit for visit in visits if phase.begin <= visit.due < phase.end]
    answered = sorted(visit.at for visit in visits if visit.at is not None and phase.begin <= visit.at < phase.end)
    latencies = sorted((visit.at - visit.due) * 1e3 for visit in here if visit.at is not None and visit.status == "ok")
    seconds = phase.end - phase.begin
    return {
        "what": phase.name,
        "seconds": round(seconds, 1),
        "visits": len(here),
        "in_time": round(sum(visit.in_time(DEADLINE_S) for visit in here) / len(here), 4),
        "p50_ms": round(latencies[len(latencies) // 2], 1),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)], 1),
        "longest_silence_s": round(max((later - earlier for earlier, later in pairwise(answered)), default=seconds), 2),
        "prefill_tokens_per_s": round(sum(visit.new_tokens for visit in here) / seconds),
        "degraded": sum(visit.degraded for visit in here),
        "need_history": sum(visit.whole for visit in here),
        **{status: sum(visit.status == status for visit in here) for status in ("rejected", "expired", "unanswered")},
    }


def series(visits: Sequence[Visit], begin: float, end: float) -> list[tuple[int, int, int]]:
    """Of each second: visits, those answered in time, prompt tokens computed for them."""
    found = [[0, 0, 0] for _ in range(int(end - begin) + 1)]
    for visit in visits:
        if begin <= visit.due < end:
            counts = found[int(visit.due - begin)]
            counts[0] += 1
            counts[1] += visit.in_time(DEADLINE_S)
            counts[2] += visit.new_tokens
    return [(came, in_time, tokens) for came, in_time, tokens in found]


def write(degrade: Sequence[str], rows: Sequence[dict[str, Any]], seconds: list[tuple[int, int, int]]) -> None:
    found = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one broker on the same busy machine",
        "commit": commit(),
        "members": 3,
        "partitions": PARTITIONS,
        "users": USERS,
        "requests_per_s": RATE,
        "deadline_s": DEADLINE_S,
        "items": LENGTHS,
        "heartbeat_ms": HEARTBEAT_MS,
        "degrade": degrade,
        "rows": list(rows),
        "series": seconds,
    }
    (RESULTS / f"warm_restart{'_degrade' if degrade else ''}.json").write_text(json.dumps(found, indent=1) + "\n")
