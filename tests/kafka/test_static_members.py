"""Static membership, which is for the classic protocol only: a quick restart moves nothing, a double ends the first."""

import pytest

from tests.consumer.serving_harness import Member
from tests.consumer.waiting import eventually
from tests.kafka.commit_log import decreases
from tests.kafka.real_harness import RealHarness

pytestmark = pytest.mark.kafka

PARTITIONS = {0, 1, 2, 3}


def named(made: RealHarness, name: str) -> Member:
    return made.member(kafka=made.kafka(instance_id=name), commit_interval_ms=0, wait=False)


def test_a_member_fenced_by_another_of_its_name_ends_and_commits_nothing(made: RealHarness) -> None:
    first = named(made, "one")
    eventually(first.owned)
    first.engine.gate.clear()
    made.send("in flight")
    made.flush()
    eventually(first.engine.busy.is_set)
    eventually(lambda: made.committed() == 0)
    second = named(made, "one")
    second.engine.gate.clear()
    assert "out for good" in eventually(lambda: first.loop.failure, 10.0)
    assert first.snapshot().not_ready
    first.engine.gate.set()
    assert first.stop() == 1
    eventually(second.owned)
    assert made.committed() == 0
    second.engine.gate.set()
    eventually(lambda: made.committed() == 1)
    assert second.loop.failure is None
    assert decreases(made.commits()) == []


def test_a_member_that_is_quickly_back_under_its_name_moves_no_partition(wide: RealHarness) -> None:
    stayer, leaver = named(wide, "a"), named(wide, "b")
    eventually(lambda: len(stayer.owned()) == len(leaver.owned()) == 2)
    before, kept = stayer.events.count.copy(), leaver.owned()
    assert leaver.stop() == 0
    back = named(wide, "b")
    eventually(lambda: back.owned() == kept)
    for partition in PARTITIONS:
        wide.send(f"r{partition}", partition=partition)
    wide.flush()
    wide.replies.wait(len(PARTITIONS))
    moves = ("assigned", "revoked", "lost")
    assert [stayer.events.count[kind] for kind in moves] == [before[kind] for kind in moves]
