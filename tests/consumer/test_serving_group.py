"""Members come and go: who owns what, and whose offsets a late result may touch."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from consumer.stream.mock_cluster import CLIENT_SETTINGS, Api
from tests.consumer.fake_engine import FakeEngine
from tests.consumer.serving_harness import REQUESTS, SILENT, Harness, Member, harness
from tests.consumer.waiting import eventually

REBALANCE_S = 40.0


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness(partitions=2) as each:
        yield each


def moved_partition(stayer: Member, newcomer: Member) -> int:
    """Wait until each member owns one of two partitions; the newcomer's."""
    eventually(lambda: len(stayer.owned()) == 1 and len(newcomer.owned()) == 1, REBALANCE_S)
    (moved,) = newcomer.owned()
    assert stayer.owned() == {0, 1} - {moved}
    return moved


def test_a_late_result_for_a_moved_partition_is_sent_but_moves_no_offset(made: Harness) -> None:
    old = made.member(revoke_drain_s=0.2, commit_interval_ms=0)
    eventually(lambda: old.owned() == {0, 1}, REBALANCE_S)
    old.engine.gate.clear()
    for partition in (0, 1):
        made.send(f"stuck-{partition}", partition=partition)
    made.flush()
    eventually(lambda: old.snapshot().running >= 1)
    new = made.member(wait=False, commit_interval_ms=0)
    moved = moved_partition(old, new)
    # The new owner starts at what was committed: the request that was stuck is answered there.
    eventually(lambda: made.committed(moved) == 1, REBALANCE_S)
    for number in range(5):
        made.send(f"more-{number}", partition=moved)
    made.flush()
    eventually(lambda: made.committed(moved) == 6)
    old.engine.gate.set()
    eventually(lambda: made.committed(1 - moved) == 1)
    replies = [received.reply.request_id for received in made.replies.poll()]
    assert replies.count(f"stuck-{1 - moved}") == 1
    assert replies.count(f"stuck-{moved}") in (1, 2), "twice if the engine had begun it, which a subscriber can tell"
    assert made.committed(moved) == 6
    assert old.events.count["late"] == replies.count(f"stuck-{moved}") - 1
    assert old.stop() == new.stop() == 0


def test_a_revoked_partition_is_drained_and_committed_before_it_moves(made: Harness) -> None:
    # The mock completes a rebalance after its hold, drained or not: give it a long hold.
    kafka = made.kafka(session_timeout_ms=6_000)
    old = made.member(kafka=kafka, revoke_drain_s=20, commit_interval_ms=0)
    eventually(lambda: old.owned() == {0, 1}, REBALANCE_S)
    old.engine.gate.clear()
    for partition in (0, 1):
        for number in range(3):
            made.send(f"p{partition}-{number}", partition=partition)
    made.flush()
    eventually(lambda: old.snapshot().in_flight == 6)
    new = made.member(kafka=kafka, wait=False)
    eventually(lambda: old.events.count["revoked"], REBALANCE_S)
    assert new.events.count["assigned"] == 0, "it still drains"
    old.engine.gate.set()
    moved = moved_partition(old, new)
    eventually(lambda: len(made.replies.poll()) >= 6)
    eventually(lambda: made.committed(moved) == 3)
    assert old.events.count["late"] == 0
    # On a busy machine the mock can be in the next rebalance already, and refuses what a broker takes then
    # (tests/kafka/test_groups.py): the new owner begins where the last commit was.
    if not old.events.count["commit_failed"]:
        assert len(made.replies.records) == 6
        assert new.events.count["received"] == 0, "nothing was served twice"


def test_the_engine_lets_go_of_the_users_of_a_partition_that_moves(made: Harness) -> None:
    old = made.member(FakeEngine(users=("u0", "u1", "unknown")))
    eventually(lambda: old.owned() == {0, 1}, REBALANCE_S)
    for partition in (0, 1):
        made.send(f"r{partition}", partition=partition, user_id=f"u{partition}", history=[1])
    made.flush()
    made.replies.wait(2)
    moved = moved_partition(old, made.member(wait=False))
    eventually(lambda: old.engine.dropped == {f"u{moved}"})


def test_partitions_that_come_while_reading_is_paused_are_paused_too(made: Harness) -> None:
    first = made.member(max_in_flight=2, max_requests=1, pause_after_s=0.2)
    eventually(lambda: first.owned() == {0, 1}, REBALANCE_S)
    second = made.member(wait=False)
    moved = moved_partition(first, second)
    first.engine.gate.clear()
    for number in range(10):
        made.send(f"kept-{number}", partition=1 - moved)
    made.flush()
    eventually(lambda: first.snapshot().paused)
    before = first.events.count["received"]
    assert second.stop() == 0
    for number in range(10):
        made.send(f"moved-{number}", partition=moved)
    made.flush()
    eventually(lambda: first.owned() == {0, 1}, REBALANCE_S)
    eventually(lambda: first.snapshot().tick_age < 0.05)
    assert first.events.count["received"] == before
    assert first.snapshot().paused
    first.engine.gate.set()
    made.replies.wait(20)
    eventually(lambda: made.committed(0) == made.committed(1) == 10)


def test_a_lost_assignment_is_dropped_without_a_commit_and_taken_up_again(made: Harness) -> None:
    member = made.member(commit_interval_ms=0)
    eventually(lambda: member.owned() == {0, 1}, REBALANCE_S)
    epochs = {each.epoch for each in member.snapshot().partitions}
    member.engine.gate.clear()
    made.send("r1")
    made.flush()
    eventually(member.engine.busy.is_set)
    made.cluster.push_errors(Api.HEARTBEAT, [KafkaError.UNKNOWN_MEMBER_ID])
    eventually(lambda: member.events.count["lost"] == 2, REBALANCE_S)
    eventually(lambda: member.owned() == {0, 1} and member.events.count["assigned"] == 4, REBALANCE_S)
    eventually(lambda: epochs.isdisjoint(each.epoch for each in member.snapshot().partitions))
    assert made.committed() == 0
    member.engine.gate.set()
    made.replies.wait(2)
    eventually(lambda: made.committed() == 1)
    assert member.events.count["late"] == 1
    assert member.loop.failure is None


def commit(made: Harness, offset: int) -> None:
    """Set the group's committed offset from outside, while it has no members."""
    outsider = Consumer({"bootstrap.servers": made.cluster.bootstrap_servers, "group.id": made.group}, logger=SILENT)
    outsider.commit(offsets=[TopicPartition(REQUESTS, 0, offset)], asynchronous=False)
    outsider.close()


@pytest.fixture
def single() -> Iterator[Harness]:
    with harness() as each:
        yield each


def test_a_new_group_reads_what_is_there_and_commits_where_it_began(single: Harness) -> None:
    single.send("early")
    single.flush()
    member = single.member()
    single.replies.wait(1)
    assert (member.events.count["reset"], member.events.count["skipped"]) == (1, 0)


def test_a_new_group_that_starts_at_the_end_counts_what_it_skips_and_decides_only_once(single: Harness) -> None:
    for number in range(3):
        single.send(f"old-{number}")
    single.flush()
    latest = single.kafka(offset_reset="latest")
    first = single.member(kafka=latest)
    eventually(lambda: single.committed() == 3)
    assert first.events.count["skipped"] == 3
    assert first.stop() == 0
    single.send("between")
    single.flush()
    second = single.member(kafka=latest)
    assert single.replies.wait(1)[0].reply.request_id == "between"
    assert second.events.count["reset"] == 0


@pytest.mark.parametrize(("policy", "answered", "skipped"), [("earliest", 3, 0), ("latest", 0, 0)])
def test_a_committed_offset_that_is_gone_is_reset_as_configured(
    single: Harness, policy: str, answered: int, skipped: int, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        single.send(f"r{number}")
    single.flush()
    commit(single, 1_000)
    member = single.member(kafka=single.kafka(offset_reset=policy))
    eventually(lambda: member.events.count["reset"] == 1)
    single.replies.wait(answered)
    single.send("next")
    single.flush()
    single.replies.wait(answered + 1)
    eventually(lambda: single.committed() == 4)
    assert member.events.count["skipped"] == skipped
    (warning,) = [record for record in caplog.records if "no usable committed offset (1000)" in record.message]
    assert warning.levelname == "WARNING"


def test_after_a_reset_that_goes_back_the_lower_offset_is_committed(single: Harness) -> None:
    member = single.member()
    for number in range(3):
        single.send(f"r{number}")
    single.flush()
    eventually(lambda: single.committed() == 3)
    member.engine.gate.clear()
    single.cluster.push_errors(Api.FETCH, [KafkaError.OFFSET_OUT_OF_RANGE])  # as after a topic is made anew
    eventually(lambda: member.events.count["reset"] == 2)
    eventually(lambda: single.committed() == 0)
    member.engine.gate.set()
    single.replies.wait(6)
    eventually(lambda: single.committed() == 3)


def test_a_restart_goes_on_where_the_last_commit_was(single: Harness) -> None:
    first = single.member()
    for number in range(5):
        single.send(f"r{number}")
    single.flush()
    single.replies.wait(5)
    assert first.stop() == 0
    assert single.committed() == 5
    single.send("next")
    single.flush()
    second = single.member()
    assert single.replies.wait(6)[-1].reply.request_id == "next"
    assert second.events.count["received"] == 1


def test_a_request_topic_that_is_created_later_is_served_once_it_is_there() -> None:
    with harness() as made:
        kafka = made.kafka(
            request_topic="later", consumer_options={**CLIENT_SETTINGS, "topic.metadata.refresh.interval.ms": 200}
        )
        member = made.member(kafka=kafka, wait=False)
        eventually(lambda: member.events.count["consumer:UNKNOWN_TOPIC_OR_PART"])
        assert member.loop.failure is None
        made.cluster.create_topic("later", 1)
        eventually(lambda: member.owned() == {0})
