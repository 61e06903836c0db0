"""Which protocol a member takes, what it sets for its group, and the walk of a live group from one to the other."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its type hints re-export little
    AclOperation,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from consumer.stream.group import HEARTBEAT, SESSION
from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import Installation
from tests.consumer.serving_harness import Member
from tests.consumer.waiting import eventually
from tests.kafka.access import PASSWORD, USER, allow, login
from tests.kafka.commit_log import decreases
from tests.kafka.real_harness import RealHarness, real_harness

pytestmark = pytest.mark.kafka

PARTITIONS = {0, 1, 2, 3}


def resource(made: RealHarness, **values: int) -> Any:
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in values.items()
    ]
    return ConfigResource(ConfigResource.Type.GROUP, made.group, incremental_configs=entries)


def kept(made: RealHarness) -> dict[str, int]:
    """The times that the brokers keep for the group."""
    (answer,) = made.cluster.admin.describe_configs([resource(made)], request_timeout=10).values()
    found = answer.result()
    return {name: int(found[name].value) for name in (HEARTBEAT, SESSION)}


def keep(made: RealHarness, **values: int) -> None:
    (answer,) = made.cluster.admin.incremental_alter_configs([resource(made, **values)], request_timeout=10).values()
    answer.result()


def serves(made: RealHarness, member: Member) -> str | None:
    """The protocol of a member that has answered a request."""
    made.send("r1")
    made.flush()
    made.replies.wait(1)
    eventually(lambda: made.committed() == 1)
    assert member.loop.failure is None
    return member.snapshot().group.protocol


def test_auto_takes_the_consumer_protocol_and_sets_the_groups_times(made: RealHarness) -> None:
    made.protocol = "auto"
    member = made.member()
    assert serves(made, member) == "consumer"
    assert kept(made) == {HEARTBEAT: 300, SESSION: 6_000}
    assert member.snapshot().group.refused is None


def test_auto_stays_classic_where_the_brokers_allow_no_such_heartbeat(made: RealHarness) -> None:
    made.protocol = "auto"
    member = made.member(kafka=made.kafka(heartbeat_interval_ms=100))  # the broker of the tests allows 200
    assert serves(made, member) == "classic"
    assert "must be in the range 200" in (member.snapshot().group.refused or "")


def test_a_session_time_that_is_refused_leaves_the_brokers_own(
    made: RealHarness, caplog: pytest.LogCaptureFixture
) -> None:
    made.protocol = "auto"
    member = made.member(kafka=made.kafka(consumer_session_timeout_ms=2_000))
    assert serves(made, member) == "consumer"
    assert kept(made) == {HEARTBEAT: 300, SESSION: 45_000}
    (told,) = [record.message for record in caplog.records if "configuration stays" in record.message]
    assert SESSION in told
    assert HEARTBEAT not in told


@pytest.fixture
def guarded(broker: KafkaCluster, made: RealHarness) -> RealHarness:
    """A user that may use the group and no more."""
    broker.add_user(USER, PASSWORD)
    allow(broker, ResourceType.GROUP, made.group, AclOperation.READ, AclOperation.DESCRIBE)
    return made


def test_a_user_who_may_not_configure_the_group_is_told_so_once_and_serves(
    guarded: RealHarness, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.protocol = "consumer"
    member = guarded.member(kafka=login(guarded))
    assert serves(guarded, member) == "consumer"
    assert "Group authorization failed" in eventually(lambda: member.snapshot().group.refused)
    assert sum("configuration stays as it is" in record.message for record in caplog.records) == 1


def test_auto_stays_classic_for_a_user_who_may_not_even_see_the_groups_times(guarded: RealHarness) -> None:
    guarded.protocol = "auto"
    assert serves(guarded, guarded.member(kafka=login(guarded))) == "classic"


def test_auto_takes_times_that_somebody_else_has_set(guarded: RealHarness) -> None:
    guarded.protocol = "auto"
    allow(guarded.cluster, ResourceType.GROUP, guarded.group, AclOperation.DESCRIBE_CONFIGS)
    keep(guarded, **{HEARTBEAT: 250})
    member = guarded.member(kafka=login(guarded))
    assert serves(guarded, member) == "consumer"
    assert kept(guarded)[HEARTBEAT] == 250
    assert member.snapshot().group.refused is not None


@pytest.fixture
def older(installation: Installation, tmp_path: Path) -> Iterator[RealHarness]:
    """A broker that keeps configurations of groups, and knows only the classic protocol."""
    only = {"group.coordinator.rebalance.protocols": "classic"}
    with KafkaCluster(installation, tmp_path / "older", options=only) as cluster, real_harness(cluster) as made:
        yield made


def test_auto_falls_back_where_the_broker_turns_out_not_to_speak_it(
    older: RealHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consumer.stream.group")
    older.protocol = "auto"
    assert serves(older, older.member()) == "classic"
    chosen = [record.args for record in caplog.records if record.name == "consumer.stream.group"]
    assert [args[0] for args in chosen if isinstance(args, tuple)] == ["consumer", "classic"]


def test_the_consumer_protocol_alone_ends_there(older: RealHarness) -> None:
    older.protocol = "consumer"
    member = older.member(wait=False)
    assert "API version not supported" in eventually(lambda: member.loop.failure)
    assert member.stop() == 1


class Walk:
    """Members that come and go while requests keep coming."""

    def __init__(self, made: RealHarness) -> None:
        self._made = made
        self.sent = 0

    def start(self, protocol: str) -> Member:
        kafka = self._made.kafka(group_protocol=protocol)
        return self._made.member(kafka=kafka, commit_interval_ms=0, max_requests=2, wait=False)

    def send_some(self) -> None:
        for _ in range(40):
            self._made.send(f"r{self.sent}", partition=self.sent % len(PARTITIONS))
            self.sent += 1
        self._made.flush()

    def await_shared(self, *members: Member) -> None:
        """Until each has partitions, and together they have all."""
        eventually(
            lambda: (
                all(each.owned() for each in members)
                and sorted(number for each in members for number in each.owned()) == sorted(PARTITIONS)
            ),
            40,
        )

    def judge(self) -> None:
        """Everything is answered and committed, and no commit was below an earlier one."""
        eventually(lambda: len({each.reply.request_id for each in self._made.replies.poll()}) == self.sent, 60)
        eventually(lambda: sum(self._made.committed(number) for number in PARTITIONS) == self.sent, 40)
        assert decreases(self._made.commits()) == []


@pytest.fixture
def walk(wide: RealHarness) -> Walk:
    return Walk(wide)


@pytest.mark.timeout(180)
def test_a_live_group_walks_back_to_the_classic_protocol_member_by_member(walk: Walk) -> None:
    """In between, members of both protocols share the partitions."""
    members = [walk.start("consumer") for _ in range(3)]
    walk.await_shared(*members)
    for slot in range(3):
        walk.send_some()
        assert members[slot].stop() == 0
        walk.send_some()
        members[slot] = walk.start("classic")
        walk.send_some()
        walk.await_shared(*members)
    walk.send_some()
    walk.judge()
    assert [member.loop.failure for member in members] == [None] * 3


@pytest.mark.timeout(180)
def test_one_classic_member_is_walked_to_the_consumer_protocol_while_it_serves(walk: Walk) -> None:
    old = walk.start("classic")
    walk.await_shared(old)
    walk.send_some()
    new = walk.start("auto")
    walk.send_some()
    walk.await_shared(old, new)
    assert new.snapshot().group.protocol == "consumer"
    walk.send_some()
    assert old.stop() == 0
    walk.send_some()
    walk.await_shared(new)
    walk.judge()
    assert new.loop.failure is None


@pytest.mark.timeout(180)
def test_a_classic_group_that_cannot_be_walked_is_joined_and_leaves_the_choice_to_the_next_start(walk: Walk) -> None:
    """Brokers turn no group into one of consumers whose members carry an assignor's data, as after a rebalance."""
    old = [walk.start("classic") for _ in range(2)]
    walk.await_shared(*old)
    third = walk.start("classic")
    walk.await_shared(*old, third)
    walk.send_some()
    joined = walk.start("auto")
    walk.send_some()
    walk.await_shared(*old, third, joined)
    assert joined.snapshot().group.protocol == "classic"
    for member in (*old, third, joined):
        walk.send_some()
        assert member.stop() == 0
    members = [walk.start("auto") for _ in range(2)]
    walk.await_shared(*members)
    walk.judge()
    assert [member.snapshot().group.protocol for member in members] == ["consumer"] * 2
