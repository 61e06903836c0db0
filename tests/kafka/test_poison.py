"""Records that cannot be served, across restarts: each is read once and never again."""

import pytest

from tests.consumer.fake_engine import FakeEngine
from tests.consumer.waiting import eventually
from tests.kafka.real_harness import RealHarness

pytestmark = pytest.mark.kafka

RESTARTS = 3


def test_a_poisoned_record_is_read_once_however_often_the_process_starts(made: RealHarness) -> None:
    made.send(value=b"\xc1 poison")
    made.send("good-0")
    made.flush()
    first = made.member()
    made.dead_letters.wait(1)
    made.replies.wait(1)
    eventually(lambda: made.committed() == 2)
    assert first.stop() == 0
    for number in range(1, RESTARTS + 1):
        member = made.member()
        made.send(f"good-{number}")
        made.flush()
        made.replies.wait(1 + number)
        eventually(lambda number=number: made.committed() == 2 + number)  # type: ignore[misc]  # bound early
        assert member.events.count["received"] == 1
        assert member.stop() == 0
    assert len(made.dead_letters.poll()) == 1


def test_a_request_that_makes_every_engine_raise_is_answered_once_and_passed(made: RealHarness) -> None:
    def fault(requests: object) -> None:
        if any(getattr(each, "top_k", 0) == 7 for each in requests):  # type: ignore[attr-defined]  # a sequence
            raise RuntimeError("this one")

    for number in range(5):
        made.send(f"good-{number}")
    made.send("culprit", top_k=7)
    made.flush()
    first = made.member(engine=FakeEngine(fault=fault))
    replies = {received.reply.request_id: received.reply for received in made.replies.wait(6)}
    assert replies["culprit"].error is not None
    assert replies["culprit"].error.code == "internal"
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"internal"
    eventually(lambda: made.committed() == 6)
    assert first.stop() == 0
    second = made.member(engine=FakeEngine(fault=fault))
    made.send("next")
    made.flush()
    made.replies.wait(7)
    assert second.events.count["received"] == 1
