"""Members of a group on a real broker: work in flight while partitions move, fencing, lost assignments."""

import threading
import time

import pytest

from tests.consumer.events import Events
from tests.consumer.waiting import eventually
from tests.kafka.commit_log import decreases
from tests.kafka.real_harness import RealHarness

pytestmark = pytest.mark.kafka

PARTITIONS = {0, 1, 2, 3}


@pytest.fixture(params=["classic", "consumer"])
def made(made: RealHarness, request: pytest.FixtureRequest) -> RealHarness:
    """One partition, with each group protocol."""
    made.protocol = request.param
    return made


@pytest.fixture(params=["classic", "consumer"])
def wide(wide: RealHarness, request: pytest.FixtureRequest) -> RealHarness:
    """Four partitions, with each group protocol."""
    wide.protocol = request.param
    return wide


def spread(made: RealHarness, count: int, begin: int = 0) -> set[str]:
    """Send ``count`` requests over all partitions; their ids."""
    ids = [f"r{number}" for number in range(begin, begin + count)]
    for number, request_id in enumerate(ids):
        made.send(request_id, partition=number % len(PARTITIONS))
    made.flush()
    return set(ids)


def answered(made: RealHarness) -> set[str | None]:
    return {received.reply.request_id for received in made.replies.poll()}


def all_committed(made: RealHarness, count: int) -> bool:
    return sum(max(0, made.committed(partition)) for partition in PARTITIONS) == count


def test_partitions_move_with_work_in_flight_and_no_commit_goes_backwards(wide: RealHarness) -> None:
    old = wide.member(commit_interval_ms=0, revoke_drain_s=0.3, max_requests=4)
    eventually(lambda: old.owned() == PARTITIONS)
    old.engine.gate.clear()
    ids = spread(wide, 24)
    eventually(lambda: old.snapshot().in_flight == 24)
    new = wide.member(wait=False, commit_interval_ms=0)
    eventually(lambda: len(new.owned()) == 2 and old.owned() == PARTITIONS - new.owned())
    ids |= spread(wide, 24, begin=24)
    moved = new.owned()
    eventually(lambda: all(wide.committed(partition) == 12 for partition in moved))
    old.engine.gate.set()
    eventually(lambda: answered(wide) == ids)
    eventually(lambda: all_committed(wide, 48))
    assert old.stop() == new.stop() == 0
    assert decreases(wide.commits()) == []


def test_a_partition_that_is_taken_is_drained_first_and_nothing_is_served_twice(wide: RealHarness) -> None:
    old = wide.member(revoke_drain_s=20, commit_interval_ms=0)
    eventually(lambda: old.owned() == PARTITIONS)
    old.engine.gate.clear()
    ids = spread(wide, 16)
    eventually(lambda: old.snapshot().in_flight == 16)
    new = wide.member(wait=False)
    eventually(lambda: old.events.count["revoked"])
    assert new.events.count["assigned"] == 0
    old.engine.gate.set()
    eventually(lambda: len(new.owned()) == 2)
    assert {received.reply.request_id for received in wide.replies.wait(16)} == ids
    assert new.events.count["received"] == 0
    eventually(lambda: all_committed(wide, 16))


def test_members_leave_under_load_and_every_request_is_answered(wide: RealHarness) -> None:
    members = [wide.member(wait=False, max_requests=2) for _ in range(3)]
    eventually(lambda: all(member.owned() for member in members))
    for member in members:
        member.engine.gate.clear()
    ids = spread(wide, 60)
    eventually(lambda: sum(member.snapshot().in_flight for member in members) == 60)
    stopping = [threading.Thread(target=member.stop) for member in members[:2]]
    for thread in stopping:
        thread.start()
    for member in members:
        member.engine.gate.set()
    for thread in stopping:
        thread.join(30)
    ids |= spread(wide, 20, begin=60)
    eventually(lambda: answered(wide) == ids)
    eventually(lambda: all_committed(wide, 80))
    assert members[2].owned() == PARTITIONS
    assert decreases(wide.commits()) == []


class HeldIntake(Events):
    """Holds the intake thread, and with it every poll, at the next record."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.held = threading.Event()

    def received(self, records: int, size: int) -> None:
        super().received(records, size)
        self.held.set()
        self.gate.wait(30)


def test_a_member_that_polls_too_late_loses_its_partitions_and_overwrites_nothing(made: RealHarness) -> None:
    events = HeldIntake()
    kafka = made.kafka(session_timeout_ms=2_000, consumer_session_timeout_ms=3_000, max_poll_interval_ms=2_500)
    late = made.member(kafka=kafka, events=events, commit_interval_ms=0, revoke_drain_s=1.0)
    made.send("held")
    made.flush()
    eventually(events.held.is_set)
    other = made.member(wait=False, commit_interval_ms=0)
    eventually(lambda: other.owned() == {0})
    for number in range(5):
        made.send(f"more-{number}")
    made.flush()
    eventually(lambda: made.committed() == 6)
    events.gate.set()
    eventually(lambda: events.count["lost"] == 1 or events.count["revoked"] == 1)
    eventually(lambda: events.count["consumer:_MAX_POLL_EXCEEDED"] == 1)
    assert late.loop.failure is None
    made.send("last")
    made.flush()
    eventually(lambda: "last" in {received.reply.request_id for received in made.replies.poll()})
    eventually(lambda: made.committed() == 7)
    assert events.count["lost"] == 1
    assert decreases(made.commits()) == []
    assert late.stop() == other.stop() == 0


def test_an_engine_that_takes_longer_than_the_poll_interval_costs_no_partition(made: RealHarness) -> None:
    member = made.member(kafka=made.kafka(session_timeout_ms=1_500, max_poll_interval_ms=1_500), revoke_drain_s=0.5)
    member.engine.gate.clear()
    made.send("slow")
    made.flush()
    eventually(member.engine.busy.is_set)
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 4.0)
    assert member.owned() == {0}
    assert not {"lost", "revoked", "consumer:_MAX_POLL_EXCEEDED"} & set(member.events.count)
    member.engine.gate.set()
    made.replies.wait(1)
    eventually(lambda: made.committed() == 1)
