"""Batching, deadlines and back-pressure of the running loop."""

import statistics
import threading
import time
from collections.abc import Iterator

import pytest

from consumer.serving.observer import Stage
from tests.consumer.events import Events
from tests.consumer.serving_harness import Harness, harness, now_ms
from tests.consumer.waiting import eventually


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def test_requests_that_arrive_while_the_engine_is_busy_share_the_next_batch(made: Harness) -> None:
    member = made.member()
    member.engine.gate.clear()
    made.send("first")
    made.flush()
    eventually(member.engine.busy.is_set)
    for number in range(10):
        made.send(f"r{number}")
    made.flush()
    eventually(lambda: member.snapshot().queued == 10)
    assert member.snapshot().running == 1
    member.engine.gate.set()
    made.replies.wait(11)
    assert member.engine.batches == [1, 10]
    assert member.events.batches[0][2] == "idle"


def test_a_batch_never_exceeds_its_request_count(made: Harness) -> None:
    member = made.member(max_requests=4)
    for number in range(30):
        made.send(f"r{number}")
    made.flush()
    made.replies.wait(30)
    assert max(member.engine.batches) <= 4


def test_a_lone_request_into_an_idle_loop_does_not_wait_for_the_window(made: Harness) -> None:
    made.member(window_ms=30_000)
    made.send("r1")
    made.flush()
    made.replies.wait(1, timeout=10)


class Lateness(Events):
    """Notes when the loop found a request expired."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def expired(self, stage: Stage) -> None:
        self.at.append(time.time() * 1000)
        super().expired(stage)


def test_a_waiting_request_is_answered_expired_at_its_deadline_while_the_engine_is_busy(made: Harness) -> None:
    member = made.member(events=(events := Lateness()))
    member.engine.gate.clear()
    made.send("busy")
    made.flush()
    eventually(member.engine.busy.is_set)
    deadlines = [now_ms() + 400 + 60 * number for number in range(5)]
    for number, deadline in enumerate(deadlines):
        made.send(f"r{number}", deadline_ms=deadline)
    made.flush()
    replies = made.replies.wait(5)
    assert member.engine.busy.is_set(), "the engine was busy all along"
    assert {received.reply.status for received in replies} == {"expired"}
    assert member.events.count["expired:queue"] == 5
    late = [at - deadline for at, deadline in zip(events.at, deadlines, strict=True)]
    assert min(late) >= -5
    assert statistics.median(late) < 200
    member.engine.gate.set()
    eventually(lambda: made.committed() == 6)
    assert member.engine.batches == [1], "no engine time was spent on them"


def test_a_result_that_comes_too_late_is_sent_as_expired(made: Harness) -> None:
    member = made.member()
    member.engine.gate.clear()
    deadline = now_ms() + 500
    made.send("r1", deadline_ms=deadline)
    made.flush()
    eventually(member.engine.busy.is_set)
    eventually(lambda: now_ms() > deadline + 10)
    member.engine.gate.set()
    reply = made.replies.wait(1)[0].reply
    assert reply.status == "expired"
    assert member.events.count["expired:reply"] == 1
    eventually(lambda: made.committed() == 1)


def test_a_full_queue_pauses_reading_goes_on_polling_and_loses_nothing(made: Harness) -> None:
    member = made.member(
        kafka=made.kafka(max_poll_interval_ms=6_000), max_in_flight=4, max_requests=1, pause_after_s=0.05
    )
    member.engine.gate.clear()
    for number in range(40):
        made.send(f"r{number}")
    made.flush()
    eventually(lambda: member.snapshot().paused)
    paused_at = time.monotonic()
    eventually(lambda: time.monotonic() - paused_at > 1.0)
    assert member.events.count["received"] <= 5
    assert member.snapshot().in_flight <= 5
    assert member.snapshot().tick_age < 1.0
    assert member.snapshot().partitions[0].lag == 40
    member.engine.gate.set()
    made.replies.wait(40)
    eventually(lambda: made.committed() == 40)
    eventually(lambda: not member.snapshot().paused)
    assert member.events.count["paused"] >= 1
    assert member.events.count["received"] == 40, "nothing was read twice"


def test_a_short_rush_is_held_without_a_pause(made: Harness) -> None:
    member = made.member(max_in_flight=4, max_requests=4, pause_after_s=60)
    for number in range(60):
        made.send(f"r{number}")
    made.flush()
    made.replies.wait(60)
    assert member.events.count["paused"] == 0


def test_bytes_close_the_gate_as_well(made: Harness) -> None:
    member = made.member(kafka=made.kafka(max_message_bytes=10_000, batch_bytes=9_000), max_in_flight_bytes=20_000)
    member.engine.gate.clear()
    for number in range(20):
        made.send(f"r{number}", history=list(range(1_000)))  # 8 kB each
    made.flush()
    eventually(lambda: member.snapshot().in_flight_bytes >= 20_000)
    assert member.snapshot().in_flight == 3
    member.engine.gate.set()
    made.replies.wait(20)


def test_keys_and_headers_count_as_bytes_too(made: Harness) -> None:
    member = made.member(kafka=made.kafka(max_message_bytes=10_000, batch_bytes=9_000), max_in_flight_bytes=20_000)
    member.engine.gate.clear()
    for number in range(20):
        made.send(f"r{number}", key=b"k" * 4_000, headers={"mine": b"h" * 4_000})
    made.flush()
    eventually(lambda: member.snapshot().in_flight_bytes >= 20_000)
    assert member.snapshot().in_flight == 3
    member.engine.gate.set()
    made.replies.wait(20)


def test_lag_and_its_age_are_zero_when_everything_is_done(made: Harness) -> None:
    member = made.member()
    member.engine.gate.clear()
    made.send("r1", timestamp=now_ms() - 2_000)
    made.flush()
    eventually(lambda: member.snapshot().partitions[0].lag == 1)
    assert member.snapshot().partitions[0].lag_seconds >= 2.0
    member.engine.gate.set()
    eventually(lambda: member.snapshot().partitions[0].lag == 0)
    assert member.snapshot().partitions[0].lag_seconds == 0.0


def test_a_producer_clock_that_is_ahead_is_noticed(made: Harness) -> None:
    member = made.member()
    made.send("r1", timestamp=now_ms() + 3_600_000)
    made.flush()
    made.replies.wait(1)
    assert member.events.count["skewed"] == 1


def test_snapshots_can_be_taken_from_any_thread_at_any_time(made: Harness) -> None:
    member = made.member()
    seen: list[int] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append(len(member.snapshot().partitions))
            stop.wait(0.001)

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(50):
        made.send(f"r{number}")
    made.flush()
    made.replies.wait(50)
    stop.set()
    watcher.join()
    assert set(seen) == {1}
