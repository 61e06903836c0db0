"""Several request topics in one process, and records that come again, on a real broker."""

import time

import pytest

from consumer.wire.settings import RecallDefaults
from tests.consumer.waiting import eventually
from tests.kafka.real_harness import RealHarness
from tests.kafka.test_groups import HeldIntake

pytestmark = pytest.mark.kafka


def test_two_topics_are_served_by_their_own_defaults_and_committed(made: RealHarness) -> None:
    search = f"{made.requests}.search"
    made.cluster.create_topics({search: 2})
    kafka = made.kafka(topics={search: {"top_k": 2, "width": 9}})
    member = made.member(kafka=kafka, defaults=RecallDefaults(top_k=3, width=4, deadline_ms=30_000))
    eventually(lambda: len(member.snapshot().partitions) == 3)
    for number in range(20):
        made.send(f"plain-{number}")
        made.send(f"search-{number}", topic=search, partition=number % 2)
    made.flush()
    answers = {(received.headers["request-topic"], len(received.reply.items)) for received in made.replies.wait(40)}
    assert answers == {(made.requests.encode(), 3), (search.encode(), 2)}
    eventually(lambda: (made.committed(), made.committed(0, search), made.committed(1, search)) == (20, 10, 10))


def test_what_was_answered_but_not_committed_is_answered_again_without_the_engine(made: RealHarness) -> None:
    """The member polls too late, loses its partition and gets it back."""
    events = HeldIntake()
    events.gate.set()
    kafka = made.kafka(session_timeout_ms=2_000, max_poll_interval_ms=2_500)
    member = made.member(
        kafka=kafka, events=events, active_catalog=lambda: "v1", commit_interval_ms=60_000, revoke_drain_s=1.0
    )
    for number in range(20):
        made.send(f"r{number}")
    made.flush()
    first = {received.value for received in made.replies.wait(20)}
    eventually(lambda: events.count["confirmed"] == 20)
    events.held.clear()
    events.gate.clear()
    made.send("held")
    made.flush()
    eventually(events.held.is_set)
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 4.0)
    events.gate.set()
    eventually(lambda: events.count["repeated"] >= 20, 30)
    eventually(lambda: len(made.replies.poll()) >= 41)
    values = [received.value for received in made.replies.records]
    assert all(values.count(value) == 2 for value in first)
    assert sum(member.engine.batches) <= 22, "twenty, and the record that was held, at most twice"
    assert member.stop() == 0
    assert made.committed() == 21
