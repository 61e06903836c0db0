"""Exactly-once delivery on a real broker: each request has one answer for a read_committed reader, whatever dies."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer.client import RecallClient
from consumer.serving.service import ServingLoop
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from consumer.stream.transactions import TransactionalProducer
from consumer.wire.settings import RecallDefaults, WireLimits
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.fake_engine import FakeEngine
from tests.consumer.waiting import eventually
from tests.kafka.commit_log import decreases, read_to_end
from tests.kafka.real_harness import RealHarness, real_harness
from tests.kafka.test_groups import PARTITIONS, HeldIntake, all_committed, spread

pytestmark = pytest.mark.kafka


class Gate:
    """Holds the first call of a producer's method, before or after it is made, until ``opened``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool = False) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        original = getattr(TransactionalProducer, name)

        def held(producer: TransactionalProducer[Any], *arguments: Any) -> None:
            first = not self.reached.is_set()
            if after:
                original(producer, *arguments)
            if first:
                self.reached.set()
                assert self.opened.wait(60)
            if not after:
                original(producer, *arguments)

        monkeypatch.setattr(TransactionalProducer, name, held)


def exactly(made: RealHarness, **changes: Any) -> KafkaSettings:
    return made.kafka(delivery="exactly-once", **changes)


def answers(made: RealHarness) -> Counter[str | None]:
    """How often each request is answered, for a read_committed reader."""
    return Counter(received.reply.request_id for received in made.replies.poll())


def each_once(made: RealHarness, ids: set[str]) -> None:
    """Every request is answered once, and stays so when all that is in the topic has been read."""
    eventually(lambda: set(answers(made)) == ids, 40.0)
    names = [dict(message.headers() or ()) for message in read_to_end(made.bootstrap_servers, made.reply_topic)]
    places = Counter((name["request-partition"], name["request-offset"]) for name in names)
    assert set(places.values()) == {1}
    assert len(places) == len(ids)


def test_replies_dead_letters_and_offsets_are_there_together(made: RealHarness) -> None:
    member = made.member(kafka=exactly(made))
    for number in range(50):
        made.send(f"r{number}")
    made.send(value=b"\xc1 poison")
    made.send("bad", top_k=5_000)
    made.send("late", deadline_ms=1)
    made.flush()
    replies = {received.reply.request_id: received.reply.status for received in made.replies.wait(52)}
    assert (replies["bad"], replies["late"], replies["r49"]) == ("error", "expired", "ok")
    made.dead_letters.wait(2)
    eventually(lambda: made.committed() == 53)
    assert eventually(lambda: member.snapshot().partitions[0].committed == 53)
    assert eventually(lambda: member.snapshot().in_flight == 0)
    assert member.events.count["confirmed"] == 52
    assert member.events.count["committed"] <= 53
    assert member.stop() == 0


def test_an_answer_waits_for_those_of_older_records(made: RealHarness) -> None:
    """A next owner would read it again with them, and answer it a second time."""
    member = made.member(kafka=exactly(made), max_requests=1)
    member.engine.gate.clear()
    made.send("slow")
    made.send(value=b"\xc1")
    made.flush()
    eventually(member.engine.busy.is_set)
    eventually(lambda: member.snapshot().in_flight == 2)
    made.send("beside", partition=0, deadline_ms=1)
    made.flush()
    eventually(lambda: member.snapshot().in_flight == 3)
    assert made.replies.poll() == made.dead_letters.poll() == []
    member.engine.gate.set()
    assert [received.reply.request_id for received in made.replies.wait(2)] == ["slow", "beside"]
    made.dead_letters.wait(1)
    eventually(lambda: made.committed() == 3)


def _serve_and_die(kafka: KafkaSettings) -> None:
    """Serve in a process of its own that is killed with its replies delivered and the transaction open."""

    def killed(_producer: TransactionalProducer[Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(TransactionalProducer, "commit", killed)  # noqa: B010 - nothing else can be hit so exactly
    loop = ServingLoop(
        FakeEngine(), kafka=kafka, batch=BatchSettings(), limits=WireLimits(), defaults=RecallDefaults(top_k=3, width=4)
    )
    loop.start()
    loop.run_until_stopped()


def test_killed_between_the_replies_and_the_commit_each_request_is_answered_once(made: RealHarness) -> None:
    kafka = exactly(made, session_timeout_ms=2_000, transaction_timeout_ms=3_000)
    for number in range(20):
        made.send(f"r{number}")
    made.flush()
    doomed = multiprocessing.get_context("spawn").Process(target=_serve_and_die, args=(kafka,), daemon=True)
    doomed.start()
    doomed.join(60)
    assert doomed.exitcode == -signal.SIGKILL
    assert made.replies.poll() == []
    assert len(list(read_to_end(made.bootstrap_servers, made.reply_topic, isolation="read_uncommitted"))) > 0
    assert made.committed() <= 0
    made.member(kafka=kafka)
    each_once(made, {f"r{number}" for number in range(20)})
    eventually(lambda: made.committed() == 20)


def test_started_again_under_its_name_a_killed_process_leaves_nothing_to_wait_for(made: RealHarness) -> None:
    kafka = exactly(made, session_timeout_ms=2_000, transaction_timeout_ms=120_000, transactional_id=f"t-{made.group}")
    made.send("r0")
    made.flush()
    doomed = multiprocessing.get_context("spawn").Process(target=_serve_and_die, args=(kafka,), daemon=True)
    doomed.start()
    doomed.join(60)
    assert doomed.exitcode == -signal.SIGKILL
    made.member(kafka=kafka)
    each_once(made, {"r0"})


def test_a_producer_whose_name_another_has_taken_ends_its_process(made: RealHarness) -> None:
    kafka = exactly(made, transactional_id=f"t-{made.group}")
    first = made.member(kafka=kafka)
    made.send("r0")
    made.flush()
    made.replies.wait(1)
    second = made.member(kafka=kafka, wait=False)

    def asked() -> str | None:
        """A transaction that ends before the second one has the name succeeds: ask on."""
        made.send("more")
        made.flush()
        return first.loop.failure

    assert "out for good" in eventually(asked, every=0.2)
    assert first.snapshot().not_ready
    assert first.stop() == 1
    eventually(second.owned)
    eventually(lambda: made.committed() == made.end_of(made.requests))
    assert len(list(read_to_end(made.bootstrap_servers, made.reply_topic))) == made.committed()
    assert second.loop.failure is None


def test_a_zombie_that_has_lost_its_partition_commits_nothing(made: RealHarness) -> None:
    """Its intake stands still, so that it does not know yet; its reply thread goes on."""
    events = HeldIntake()
    late = made.member(
        kafka=exactly(made, session_timeout_ms=2_000, max_poll_interval_ms=2_500),
        events=events,
        wait=False,
        revoke_drain_s=1.0,
    )
    late.engine.gate.clear()
    events.gate.set()
    made.send("r0")
    made.flush()
    eventually(late.engine.busy.is_set)
    events.gate.clear()
    events.held.clear()
    made.send("r1")
    made.flush()
    eventually(events.held.is_set)
    other = made.member(kafka=exactly(made), wait=False)
    eventually(lambda: made.committed() == 2)
    before = events.count["committed"]
    late.engine.gate.set()
    eventually(lambda: events.count["commit_failed"])
    assert events.count["committed"] == before
    events.gate.set()
    eventually(lambda: events.count["lost"] or events.count["revoked"])
    eventually(lambda: late.snapshot().in_flight == 0)
    assert late.loop.failure is None
    each_once(made, {"r0", "r1"})
    assert decreases(made.commits()) == []
    assert late.stop() == other.stop() == 0


def move(wide: RealHarness, between: Callable[[], object], revoke_drain_s: float) -> set[str]:
    """Two of four partitions go to a second member while the first one's transaction is held; ``between``: then."""
    old = wide.member(kafka=exactly(wide), revoke_drain_s=revoke_drain_s, wait=False)
    eventually(lambda: old.owned() == PARTITIONS)
    ids = spread(wide, 40)
    new = wide.member(kafka=exactly(wide), wait=False)
    eventually(lambda: old.events.count["revoked"])
    between()
    eventually(lambda: len(new.owned()) == 2 and len(old.owned()) == 2)
    ids |= spread(wide, 20, begin=40)
    return ids


def test_a_transaction_open_at_a_rebalance_is_committed_before_its_partitions_leave(
    wide: RealHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "commit")
    ids = move(wide, gate.opened.set, revoke_drain_s=20)
    each_once(wide, ids)
    eventually(lambda: all_committed(wide, 60))
    assert sum(member.events.count["received"] for member in wide.members) == 60, "nothing was read twice"
    assert decreases(wide.commits()) == []


def test_a_transaction_that_outlives_the_revoke_is_aborted_and_the_new_owner_answers(
    wide: RealHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "begin")
    ids = move(wide, lambda: None, revoke_drain_s=0.5)
    gate.opened.set()
    each_once(wide, ids)
    eventually(lambda: all_committed(wide, 60))
    assert wide.members[0].events.count["commit_failed"] == 1
    assert decreases(wide.commits()) == []


def test_nobody_reads_on_before_a_transaction_that_has_its_offsets_is_over(
    wide: RealHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is too late to abort it: the group keeps the next owner waiting for these offsets."""
    gate = Gate(monkeypatch, "commit")
    old = wide.member(kafka=exactly(wide), revoke_drain_s=0.5, wait=False)
    eventually(lambda: old.owned() == PARTITIONS)
    ids = spread(wide, 40)
    assert gate.reached.wait(20)
    new = wide.member(kafka=exactly(wide), wait=False)
    eventually(lambda: len(old.owned()) == 2)
    eventually(lambda: old.snapshot().tick_age < 0.5)
    gate.opened.set()
    eventually(lambda: len(new.owned()) == 2)
    each_once(wide, ids)
    eventually(lambda: all_committed(wide, 40))
    assert decreases(wide.commits()) == []


def test_a_reply_that_cannot_be_written_becomes_a_dead_letter_and_its_neighbours_are_answered_once(
    made: RealHarness,
) -> None:
    member = made.member(
        kafka=exactly(made, reply_topics_allowed=("missing.*",), producer_options={"linger.ms": 20}),
    )
    member.engine.gate.clear()
    ids = {f"r{number}" for number in range(10)}
    for request_id in sorted(ids):
        made.send(request_id)
    made.send("nowhere", headers={"reply-topic": b"missing.topic"})
    made.send("elsewhere", headers={"reply-partition": b"77"})
    made.flush()
    eventually(lambda: member.snapshot().in_flight == 12)
    member.engine.gate.set()
    reasons = {letter.headers["dlq.error.class"] for letter in made.dead_letters.wait(2)}
    assert reasons == {b"reply_topic_unknown", b"reply_partition_unknown"}
    each_once(made, ids)
    eventually(lambda: made.committed() == 12)
    assert member.events.count["commit_failed"] == 0, "no transaction was aborted for it"
    assert member.events.count["confirmed"] == 10


def test_replies_to_topics_that_are_missing_hold_nobody_up(made: RealHarness) -> None:
    member = made.member(kafka=exactly(made, reply_topics_allowed=("missing.*",)))
    ids = set()
    for number in range(5):
        made.send(f"nowhere-{number}", headers={"reply-topic": b"missing.%d" % number})
        made.send(f"r{number}")
        made.flush()
        ids.add(f"r{number}")
        # The client waits two seconds for a topic to appear, in a transaction all others would wait too.
        eventually(lambda: set(answers(made)) == ids, 1.8)
    letters = made.dead_letters.wait(5)
    assert {letter.headers["dlq.error.class"] for letter in letters} == {b"reply_topic_unknown"}
    assert member.events.count["commit_failed"] == 0


def test_a_reply_topic_that_is_deleted_costs_its_own_requests_and_no_others(made: RealHarness) -> None:
    own = f"{made.reply_topic}.own"
    made.cluster.create_topics({own: 1})
    member = made.member(kafka=exactly(made, reply_topics_allowed=(own,)))
    made.send("before", headers={"reply-topic": own.encode()})
    made.flush()
    eventually(lambda: made.committed() == 1)
    for deleted in made.cluster.admin.delete_topics([own]).values():
        deleted.result(10)
    made.send("after", headers={"reply-topic": own.encode()})
    made.send("neighbour")
    made.flush()
    eventually(lambda: member.loop.failure or set(answers(made)) == {"neighbour"})
    eventually(lambda: made.committed() == 3)
    (letter,) = made.dead_letters.wait(1)
    assert letter.headers["dlq.error.class"] == b"reply_topic_unknown"
    assert member.loop.failure is None


def test_a_reply_larger_than_its_topic_takes_is_shrunk_and_its_neighbours_are_answered_once(
    broker: KafkaCluster,
) -> None:
    with real_harness(broker, config={"max.message.bytes": "5000"}) as made:
        member = made.member(kafka=exactly(made, batch_bytes=4_500, producer_options={"linger.ms": 20}))
        member.engine.gate.clear()
        ids = {f"r{number}" for number in range(10)} | {"big"}
        for request_id in sorted(ids):
            made.send(request_id, key=b"k", top_k=1_000 if request_id == "big" else 3)
        made.flush()
        eventually(lambda: member.snapshot().in_flight == 11)
        member.engine.gate.set()
        each_once(made, ids)
        errors = {each.reply.request_id: each.reply.error.code for each in made.replies.poll() if each.reply.error}
        assert errors == {"big": "too_large"}
        eventually(lambda: made.committed() == 11)


def test_a_chosen_start_is_committed_before_there_is_anything_to_answer(made: RealHarness) -> None:
    made.send("before")
    made.flush()
    made.member(kafka=exactly(made, offset_reset="latest"))
    eventually(lambda: made.committed() == 1)


def test_a_broker_that_dies_under_load_and_comes_back_costs_no_request_and_doubles_none(
    installation: Any, tmp_path: Any
) -> None:
    with KafkaCluster(installation, tmp_path / "own") as cluster, real_harness(cluster, partitions=4) as made:
        member = made.member(kafka=exactly(made), wait=False, max_requests=4)
        eventually(lambda: member.owned() == PARTITIONS)
        ids = spread(made, 200)
        eventually(lambda: len(answers(made)) > 20)
        cluster.kill_broker(1)
        cluster.start_broker(1)
        ids |= spread(made, 40, begin=200)
        eventually(lambda: member.loop.failure or set(answers(made)) == ids, 60.0)
        if member.loop.failure:  # its transaction had timed out: the next process goes on from the last commit
            made.member(kafka=exactly(made), wait=False)
        each_once(made, ids)
        eventually(lambda: all_committed(made, 240))


def test_the_client_sees_no_reply_of_an_open_or_aborted_transaction(made: RealHarness) -> None:
    kafka = exactly(made, transaction_timeout_ms=60_000)
    made.member(kafka=kafka)
    other = Producer({"bootstrap.servers": made.bootstrap_servers, "transactional.id": f"other-{made.group}"})
    other.init_transactions(20)

    async def ask() -> str:
        async with RecallClient(kafka) as client:
            client._pending[b"ghost"] = ghost = asyncio.get_running_loop().create_future()
            for number in range(2):
                other.begin_transaction()
                other.produce(made.reply_topic, b"?", partition=number, headers=[("correlation-id", b"ghost")])
                other.flush(10)
                other.abort_transaction(10)
            reply = await client.recall(history=[1], timeout=20)
            assert not ghost.done()
            del client._pending[b"ghost"]
            return reply.status

    assert asyncio.run(ask()) == "ok"
