"""Catalogs that change or vanish while requests keep coming: what it costs in time, and what is served."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from catalog_sync.connection import connect
from consumer.wire.reply import decode_reply
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.serve_harness import ITEMS, publish
from tests.kafka.commit_log import read_to_end
from tests.kafka.fleet import Group, group
from tests.kafka.load import Load, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.stress, pytest.mark.timeout(600)]

RATE = 40.0
ROUNDS, PHASE_S, SWAP_EVERY_S = 4, 8.0, 2.0
LIMIT, SLACK_S = 3.0, 0.25
"""On two shared cores: staging a version takes time from the engine. The ratio is what a GPU is held to."""
SETTLED_S = 3.0


@dataclass(frozen=True)
class Served:
    """A reply: when it was asked for, in ms since the epoch, how long it took in seconds, and from what."""

    asked_ms: int
    seconds: float
    catalog: str
    items: frozenset[int]
    status: str


@pytest.fixture
def alone(broker: KafkaCluster, tmp_path: Path) -> Iterator[Group]:
    """One member that serves."""
    with group(
        broker, tmp_path, "--batch.max_requests=8", "--catalog.poll_seconds=1", "--recall.deadline_ms=20000"
    ) as each:
        each.members = [each.member()]
        each.await_ready()
        yield each


def replies(each: Group) -> list[Served]:
    at = each.cluster.bootstrap_servers
    requests, answers, _ = each.topics
    asked = {(m.partition(), m.offset()): m.timestamp()[1] for m in read_to_end(at, requests)}
    served = []
    for message in read_to_end(at, answers):
        headers = dict(message.headers() or ())
        begun = asked[int(headers["request-partition"] or b""), int(headers["request-offset"] or b"")]
        reply = decode_reply(message.value())
        items = frozenset(np.asarray(reply.items).tolist())
        seconds = (message.timestamp()[1] - begun) / 1000
        served.append(Served(begun, seconds, reply.catalog or "", items, reply.status))
    return served


def percentile(values: list[float], percent: float) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def items_of(number: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """No two versions share an item."""
    return ITEMS + 1_000 * number


def rest(seconds: float) -> None:
    """Let the load run; what is measured is what it meets."""
    time.sleep(seconds)


def finish(each: Group, load: Load) -> None:
    load.stop()
    each.await_answers(load)
    load.close()
    assert each.stop() == [0]
    verdict = each.judge()
    assert verdict.kept, str(verdict)


def test_swaps_do_not_stall_requests_and_every_reply_is_of_one_version(alone: Group) -> None:
    (member,) = alone.members
    versions = {member.catalog()["active"]: 0}
    phases: list[tuple[str, int, int]] = []
    load = alone.load(rate=RATE, outstanding=10_000)
    load.start()
    rest(SETTLED_S)
    for _ in range(ROUNDS):
        for kind in ("calm", "swaps"):
            begun = time.time()
            while (left := begun + PHASE_S - time.time()) > 0:
                if kind == "swaps":
                    number = len(versions)
                    versions[publish(alone.catalog, items_of(number), alone.name)] = number
                rest(min(left, SWAP_EVERY_S))
            phases.append((kind, round(begun * 1000), round(time.time() * 1000)))
    newest = max(versions, key=lambda version: versions[version])
    wait_until(lambda: member.catalog().get("active") == newest, 30, member.last_words)
    finish(alone, load)

    served = replies(alone)
    times: dict[str, list[float]] = {"calm": [], "swaps": []}
    for kind, begin, end in phases:
        times[kind] += [each.seconds for each in served if begin <= each.asked_ms < end]
    calm, swaps = percentile(times["calm"], 99), percentile(times["swaps"], 99)
    medians = {kind: round(percentile(values, 50) * 1000) for kind, values in times.items()}
    print(  # noqa: T201 - shown by pytest -rP, the run's record
        f"{len(versions)} versions, {len(served)} replies; p99 {calm * 1000:.0f} ms calm, {swaps * 1000:.0f} ms in "
        f"swaps; p50 {medians}"
    )
    assert {each.status for each in served} == {"ok"}
    for each in served:
        assert each.items <= set(items_of(versions[each.catalog]).tolist()), "items of another version"
    seen = {each.catalog for each in served}
    assert len(seen) >= len(versions) - 2, f"{len(seen)} of {len(versions)} versions answered something"
    assert swaps <= LIMIT * calm + SLACK_S


def test_an_emptied_redis_under_load_changes_no_reply_and_shows(alone: Group) -> None:
    (member,) = alone.members
    first = member.catalog()["active"]
    load = alone.load(rate=RATE, outstanding=10_000)
    load.start()
    rest(SETTLED_S)
    connect(alone.catalog).flushall()
    emptied = round(time.time() * 1000)
    wait_until(lambda: member.catalog().get("staleness_s", 0) > 4.0, 30, member.last_words)
    stale = round(time.time() * 1000)
    assert member.ready()
    assert member.catalog()["active"] == first
    second = publish(alone.catalog, items_of(1), alone.name)
    wait_until(lambda: member.catalog().get("active") == second, 30, member.last_words)
    wait_until(lambda: member.catalog()["staleness_s"] < 4.0, 30, member.last_words)
    rest(SETTLED_S)
    finish(alone, load)

    served = replies(alone)
    assert {each.status for each in served} == {"ok"}
    meanwhile = [each for each in served if emptied <= each.asked_ms < stale]
    assert len(meanwhile) > RATE
    assert {each.catalog for each in meanwhile} == {first}
    assert {each.catalog for each in served} == {first, second}
