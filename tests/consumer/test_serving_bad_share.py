"""Too many bad records end the process: the pure rule, and what a topic full of them loses (nothing)."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.bad_records import BadRecordLimit
from consumer.serving.service import EXIT_FAILED
from consumer.serving.settings import BatchSettings
from tests.consumer.serving_harness import Harness, Member, harness
from tests.consumer.waiting import eventually

LEAST, SECONDS = 10, 60.0


def limit(share: float = 0.5) -> BadRecordLimit:
    return BadRecordLimit(
        BatchSettings(bad_share_limit=share, bad_window_records=LEAST, bad_window_s=SECONDS, max_requests=1)
    )


def test_fewer_records_than_the_least_are_not_judged() -> None:
    rule = limit()
    rule.read(LEAST - 1, 0.0)
    assert [rule.bad(0.0) for _ in range(LEAST - 1)] == [None] * (LEAST - 1)
    rule.read(1, 0.0)
    assert rule.bad(0.0) == "10 of the last 10 records were bad, batch.bad_share_limit is 0.5"


def test_exactly_the_limit_is_allowed_and_one_more_is_not() -> None:
    rule = limit(0.3)
    rule.read(100, 0.0)
    assert not any(rule.bad(0.0) for _ in range(30))
    assert rule.bad(0.0)


def test_what_lies_before_the_window_is_forgotten() -> None:
    rule = limit()
    rule.read(1_000, 0.0)
    rule.read(10, SECONDS + 2)
    assert not any(rule.bad(SECONDS + 2) for _ in range(5))
    assert rule.bad(SECONDS + 2)


def test_with_little_traffic_the_window_is_as_long_as_the_least_records_take() -> None:
    rule = limit()
    found = []
    for hour in range(LEAST):
        rule.read(1, hour * 3600.0)
        found.append(rule.bad(hour * 3600.0))
    assert [bool(each) for each in found] == [False] * (LEAST - 1) + [True]


def test_more_replays_than_are_judged_together_count_like_others() -> None:
    rule = limit()
    rule.read(3 * LEAST, 0.0)
    assert not any(rule.bad(0.0, replay=True) for _ in range(LEAST + 15))
    assert rule.bad(0.0, replay=True)
    rule.read(3 * LEAST, SECONDS + 2)
    assert not any(rule.bad(SECONDS + 2, replay=True) for _ in range(LEAST)), "those are forgotten"


def test_a_limit_of_one_is_none() -> None:
    rule = limit(1.0)
    rule.read(LEAST, 0.0)
    assert not any(rule.bad(0.0) for _ in range(5 * LEAST))


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=1, max_size=400), st.sampled_from([0.1, 0.5, 0.9]))
def test_the_rule_is_that_of_a_plain_list(steps: list[tuple[float, bool]], share: float) -> None:
    """Up to the width of a bucket, which is a part of the window."""
    rule, now = limit(share), 0.0
    history: list[tuple[float, bool]] = []
    for pause, bad in steps:
        now += pause
        rule.read(1, now)
        history.append((now, bad))
        found = bool(rule.bad(now)) if bad else None
        if found is None:
            continue
        verdicts = set()
        for window in (SECONDS, SECONDS * 1.02):
            recent = [each for each in history if now - each[0] <= window]
            for counted in (recent, history[-max(len(recent), LEAST) :]):
                verdicts |= {judged(counted, share), judged(counted[1:], share)}
            verdicts |= {judged(history[-count:], share) for count in range(LEAST, LEAST + 3)}
        if len(verdicts) == 1:
            assert {found} == verdicts


def judged(records: list[tuple[float, bool]], share: float) -> bool:
    return len(records) >= LEAST and sum(bad for _, bad in records) > share * len(records)


# --- in the running loop ----------------------------------------------------------------------------------------------


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def failed(member: Member) -> str:
    failure = eventually(lambda: member.loop.failure)
    assert any("failed" in reason for reason in member.snapshot().not_ready), "readiness goes first"
    assert member.stop() == EXIT_FAILED
    return failure


def test_a_topic_of_bad_records_is_not_drained_and_nothing_is_lost(made: Harness) -> None:
    member = made.member(bad_window_records=20)
    for number in range(100):
        made.send(f"r{number}", value=None if number % 4 == 0 else b"\xc1")
    made.flush()
    assert "records were bad, batch.bad_share_limit is 0.5; the last: bad_request: " in failed(member)
    assert 10 <= member.events.count["dead:bad_request"] < 60
    assert made.committed() < 100
    after = made.member(bad_share_limit=1.0)  # the deploy is mended, or somebody decided
    eventually(lambda: made.committed() == 100)
    good = {f"r{number}" for number in range(0, 100, 4)}
    eventually(lambda: {r.reply.request_id for r in made.replies.poll() if r.reply.status == "ok"} == good)
    bad = {str(number).encode() for number in range(100) if number % 4}
    eventually(lambda: {letter.headers["dlq.original.offset"] for letter in made.dead_letters.poll()} == bad)
    assert after.loop.failure is None


def test_a_share_within_the_limit_goes_on(made: Harness) -> None:
    member = made.member(bad_window_records=10, bad_share_limit=0.5)
    for number in range(60):
        made.send(f"r{number}", value=b"\xc1" if number % 3 == 0 else None)
    made.flush()
    eventually(lambda: made.committed() == 60)
    made.dead_letters.wait(20)
    assert member.loop.failure is None


def test_replies_that_cannot_be_delivered_count_as_bad_records(made: Harness) -> None:
    """A mistyped reply topic would send every request to the dead letters."""
    member = made.member(bad_window_records=10)
    for number in range(20):
        made.send(f"r{number}", headers={"reply-partition": b"77"})
    made.flush()
    assert "reply_partition_unknown" in failed(member)


def test_replays_that_fail_again_end_nothing(made: Harness) -> None:
    member = made.member(bad_window_records=50)
    for _ in range(50):
        made.send(value=b"\xc1", headers={"dlq.attempt": b"2"})
    made.flush()
    eventually(lambda: made.committed() == 50)
    assert member.loop.failure is None
