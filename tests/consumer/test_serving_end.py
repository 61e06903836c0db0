"""How the loop ends: drained on request, non-zero on failure, in time in any case."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest
from confluent_kafka import KafkaError

from consumer.serving.service import EXIT_FAILED, EXIT_OK, EXIT_STUCK
from consumer.stream.consumer import RequestConsumer
from consumer.stream.errors import StreamError
from consumer.stream.mock_cluster import Api
from consumer.stream.settings import KafkaSettings
from tests.consumer.serving_harness import DEAD_LETTERS, REPLIES, REQUESTS, Harness, Member, harness
from tests.consumer.waiting import eventually


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def failed(member: Member, timeout: float = 20.0) -> str:
    """Wait for the loop to fail by itself; readiness goes first, the exit code is not zero."""
    failure = eventually(lambda: member.loop.failure, timeout)
    assert member.snapshot().not_ready
    assert member.snapshot().failure == failure
    assert member.stop() == EXIT_FAILED
    return failure


def test_stopping_answers_and_commits_what_was_read(made: Harness) -> None:
    member = made.member()
    member.engine.gate.clear()
    for number in range(20):
        made.send(f"r{number}")
    made.flush()
    eventually(lambda: member.snapshot().in_flight == 20)
    codes: list[int] = []
    stopper = threading.Thread(target=lambda: codes.append(member.stop()))
    stopper.start()
    eventually(lambda: "draining" in member.snapshot().not_ready)
    member.engine.gate.set()
    stopper.join(10)
    assert codes == [EXIT_OK]
    made.replies.wait(20)
    assert made.committed() == 20


def test_what_does_not_finish_within_the_drain_is_left_to_the_next_owner(made: Harness) -> None:
    member = made.member(drain_s=0.3, max_requests=1)
    made.send("done")
    made.flush()
    made.replies.wait(1)
    member.engine.gate.clear()
    for number in range(3):
        made.send(f"r{number}")
    made.flush()
    eventually(lambda: member.snapshot().in_flight == 3)
    begun = time.monotonic()
    assert member.stop() == EXIT_OK
    assert time.monotonic() - begun < 5.0
    assert made.committed() == 1
    made.member()
    eventually(lambda: made.committed() == 4)


def test_stopping_an_idle_loop_is_quick(made: Harness) -> None:
    member = made.member()
    begun = time.monotonic()
    assert member.stop() == EXIT_OK
    assert time.monotonic() - begun < 3.0


def test_stopping_with_the_broker_down_keeps_to_the_budget(made: Harness) -> None:
    codes: list[int] = []

    def end(code: int) -> None:  # a close that waits for the broker can only be ended with the process
        codes.append(code)
        made.cluster.broker_up()

    member = made.member(drain_s=0.5, close_s=1.0, end_process=end)
    made.send("r1")
    made.flush()
    made.replies.wait(1)
    eventually(lambda: member.snapshot().in_flight == 0)
    made.cluster.broker_down()
    begun = time.monotonic()
    assert member.stop() == EXIT_OK
    assert codes in ([], [EXIT_STUCK])
    assert time.monotonic() - begun < 10.0


def test_a_close_that_hangs_is_ended_by_the_watchdog(made: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    close = RequestConsumer.close

    def hang(consumer: RequestConsumer, budget: float) -> bool:
        hanging.wait()
        return close(consumer, budget)

    monkeypatch.setattr(RequestConsumer, "close", hang)
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        hanging.set()

    member = made.member(drain_s=0.1, close_s=0.2, end_process=end)
    member.stop()
    assert codes == [EXIT_STUCK]


def test_a_loop_that_was_never_started_can_be_stopped(made: Harness) -> None:
    member = made.member(start=False)
    assert "not a member" in member.snapshot().not_ready[0]
    assert member.stop() == EXIT_OK


def test_a_fenced_member_ends_the_process(made: Harness) -> None:
    """The client reports it once, with ``fatal()`` false, and is silent from then on."""
    kafka = made.kafka(instance_id="one")
    member = made.member(kafka=kafka)
    made.cluster.push_errors(Api.HEARTBEAT, [KafkaError.FENCED_INSTANCE_ID])
    assert "out for good" in failed(member)


def test_an_error_that_is_not_known_to_heal_ends_the_process(made: Harness) -> None:
    member = made.member()
    made.cluster.push_errors(Api.FETCH, [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 3)
    assert "TOPIC_AUTHORIZATION_FAILED" in failed(member)


def test_a_commit_that_is_refused_for_good_ends_the_process(made: Harness) -> None:
    member = made.member()
    made.cluster.push_errors(Api.OFFSET_COMMIT, [KafkaError.GROUP_AUTHORIZATION_FAILED] * 20)
    made.send("r1")
    made.flush()
    assert "GROUP_AUTHORIZATION_FAILED" in failed(member)


def test_a_commit_that_fails_for_now_is_tried_again(made: Harness) -> None:
    member = made.member(commit_interval_ms=0)
    eventually(lambda: made.committed() == 0)
    made.cluster.push_errors(Api.OFFSET_COMMIT, [KafkaError.REBALANCE_IN_PROGRESS])
    made.send("r1")
    made.flush()
    eventually(lambda: made.committed() == 1)
    assert member.events.count["commit_failed"] >= 1
    assert member.loop.failure is None


def test_a_commit_that_the_client_sends_again_overtakes_no_later_one(made: Harness) -> None:
    member = made.member(commit_interval_ms=0)
    eventually(lambda: made.committed() == 0)
    made.cluster.push_errors(Api.OFFSET_COMMIT, [KafkaError.COORDINATOR_LOAD_IN_PROGRESS])
    for number in (1, 2):
        made.send(f"r{number}")
        made.flush()
        eventually(lambda number=number: member.events.count["confirmed"] == number)  # type: ignore[misc]  # bound early
    eventually(lambda: made.committed() == 2)
    begun = time.monotonic()
    eventually(lambda: made.committed() < 2 or time.monotonic() - begun > 0.8)  # the client waits 0.1 s
    assert made.committed() == 2


def test_all_brokers_down_for_longer_than_the_limit_ends_the_process(made: Harness) -> None:
    member = made.member(kafka=made.kafka(brokers_down_limit_s=1.0, message_timeout_ms=60_000))
    made.cluster.broker_down()
    assert "no broker can be reached" in failed(member)


def test_an_outage_within_the_limit_loses_nothing(made: Harness) -> None:
    member = made.member(kafka=made.kafka(brokers_down_limit_s=30.0))
    member.engine.gate.clear()
    for number in range(5):
        made.send(f"r{number}")
    made.flush()
    eventually(lambda: member.snapshot().in_flight == 5)
    made.cluster.broker_down()
    eventually(lambda: member.events.count["consumer:_ALL_BROKERS_DOWN"])
    member.engine.gate.set()
    eventually(lambda: member.events.recalled(5))
    made.cluster.broker_up()
    eventually(lambda: len({received.reply.request_id for received in made.replies.poll()}) == 5, 40)
    eventually(lambda: made.committed() == 5, 40)
    assert member.loop.failure is None


def test_an_idle_loop_survives_an_outage_that_has_ended_before_the_limit(made: Harness) -> None:
    """Without traffic there is no sign of life; the brokers are asked before the process is given up."""
    member = made.member(kafka=made.kafka(brokers_down_limit_s=1.5))
    made.cluster.broker_down()
    eventually(lambda: member.events.count["consumer:_ALL_BROKERS_DOWN"])
    made.cluster.broker_up()
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 2.5)
    assert member.loop.failure is None
    made.send("r1")
    made.flush()
    made.replies.wait(1)


def test_settings_that_kafka_refuses_are_an_error_at_construction(made: Harness) -> None:
    with pytest.raises(StreamError, match=r"no\.such\.option"):
        made.member(kafka=made.kafka(consumer_options={"no.such.option": 1}), start=False)
    with pytest.raises(StreamError, match=r"no\.such\.option"):
        made.member(kafka=made.kafka(producer_options={"no.such.option": 1}), start=False)


def test_a_drain_that_would_outlive_the_polls_interval_is_refused(made: Harness) -> None:
    with pytest.raises(StreamError, match="revoke_drain_s"):
        made.member(revoke_drain_s=31, start=False)


# --- signals, in a process of its own ---------------------------------------------------------------------------------


@contextmanager
def process(
    made: Harness, *, slow: float, kafka: KafkaSettings | None = None, **batch: Any
) -> Iterator[subprocess.Popen[str]]:
    settings = {"kafka": (kafka or made.kafka()).model_dump(mode="json"), "batch": batch, "slow": slow}
    command = [sys.executable, "-m", "tests.consumer.serving_process", json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert line_of(child.stdout) == "ready"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_commit_that_nobody_will_answer_does_not_hold_up_the_end(protocol: str) -> None:
    """The client waits for its answer when it is closed: for the session's time or, with KIP-848, without end."""
    with harness(brokers=2) as made:
        for topic, partitions in {REQUESTS: 1, REPLIES: 2, DEAD_LETTERS: 1}.items():
            for number in range(partitions):
                made.cluster.set_leader(topic, number, 1)
        made.cluster.set_group_coordinator(made.group, 2)
        kafka = made.kafka(group_protocol=protocol, session_timeout_ms=45_000, brokers_down_limit_s=1.0)
        with process(made, kafka=kafka, slow=0.0) as child:
            made.cluster.broker_down(2)
            made.send("r1")
            made.flush()
            made.replies.wait(1)
            made.cluster.broker_down(1)
            assert child.wait(15) == EXIT_FAILED


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def test_sigterm_drains_and_a_second_one_ends_at_once_without_a_commit(made: Harness) -> None:
    with process(made, slow=1.0, max_requests=8) as child:
        for number in range(4):
            made.send(f"r{number}")
        made.flush()
        assert line_of(child.stdout) == "running"
        child.send_signal(signal.SIGTERM)
        assert child.wait(15) == EXIT_OK
    made.replies.wait(4)
    assert made.committed() == 4

    with process(made, slow=60.0, drain_s=50.0) as child:
        made.send("stuck")
        made.flush()
        assert line_of(child.stdout) == "running"
        child.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.send_signal(signal.SIGTERM)
        assert child.wait(5) == 128 + signal.SIGTERM
    assert made.committed() == 4
