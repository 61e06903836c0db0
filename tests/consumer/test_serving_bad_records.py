"""Bad records: a typed error reply where it can be addressed, a dead letter, and good neighbours that are answered."""

from collections.abc import Iterator, Sequence

import pytest

from consumer.wire.outgoing import encode_request
from consumer.wire.reply import RecallReply
from engine.errors import DeviceError, RequestError
from engine.request import RecallRequest
from tests.consumer.fake_engine import FakeEngine, items_for
from tests.consumer.raw_record import send_with_header_name
from tests.consumer.serving_harness import DEAD_LETTERS, REQUESTS, Harness, Received, harness, now_ms
from tests.consumer.waiting import eventually


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def by_id(replies: Sequence[Received]) -> dict[str | None, RecallReply]:
    decoded = [received.reply for received in replies]
    return {reply.request_id: reply for reply in decoded}


def code_of(reply: RecallReply) -> str | None:
    return reply.error.code if reply.error else None


def test_undecodable_bytes_become_a_dead_letter_with_the_original_record(made: Harness) -> None:
    member = made.member()
    made.send(value=b"\xc1\xff", key=b"\x00key", headers={"mine": b"\xfe"})
    made.flush()
    (letter,) = made.dead_letters.wait(1)
    assert (letter.key, letter.value, letter.headers["mine"]) == (b"\x00key", b"\xc1\xff", b"\xfe")
    assert letter.headers["dlq.error.class"] == b"bad_request"
    assert letter.headers["dlq.error.stage"] == b"decode"
    assert letter.headers["dlq.original.offset"] == b"0"
    assert letter.headers["dlq.consumer.group"] == made.group.encode()
    eventually(lambda: made.committed() == 1)
    assert made.replies.poll() == [], "nobody could tell whose reply it is"
    assert member.events.count["bad:bad_request"] == 1


def test_a_bad_request_that_can_be_addressed_is_answered_as_well(made: Harness) -> None:
    made.member()
    made.send("r1", top_k="many")
    made.send(value=b"\xc1", headers={"correlation-id": b"c2"})
    made.flush()
    replies = made.replies.wait(2)
    assert {code_of(received.reply) for received in replies} == {"bad_request"}
    assert {received.reply.request_id for received in replies} == {"r1", None}
    assert any(received.headers.get("correlation-id") == b"c2" for received in replies)
    made.dead_letters.wait(2)
    eventually(lambda: made.committed() == 2)


def test_one_bad_among_63_good_harms_nobody(made: Harness) -> None:
    member = made.member()
    for number in range(64):
        made.send(f"r{number}", history=[number * 10], beam={"width": 0 if number == 31 else 8})
    made.flush()
    replies = by_id(made.replies.wait(64))
    assert code_of(replies["r31"]) == "bad_request"
    for number in set(range(64)) - {31}:
        assert list(replies[f"r{number}"].items) == [number * 10 + rank for rank in (1, 2, 3)]
    made.dead_letters.wait(1)
    eventually(lambda: made.committed() == 64)
    assert member.events.count["replied:ok"] == 63


def test_what_the_engine_refuses_at_admission_is_answered_and_kept(made: Harness) -> None:
    made.member()
    made.send("r1", top_k=5_000)
    made.flush()
    assert code_of(made.replies.wait(1)[0].reply) == "bad_request"
    assert made.dead_letters.wait(1)[0].headers["dlq.error.stage"] == b"validate"


def test_an_exception_while_sizing_fails_only_that_request(made: Harness) -> None:
    def sizing(request: RecallRequest) -> int:
        return 1 // (items_for(request)[0] - 1)

    made.member(FakeEngine(sizing=sizing))
    made.send("bad", history=[0])
    made.send("good", history=[5])
    made.flush()
    replies = by_id(made.replies.wait(2))
    assert code_of(replies["bad"]) == "internal"
    assert replies["good"].status == "ok"


def test_a_request_that_makes_the_engine_raise_is_singled_out(made: Harness) -> None:
    def fault(requests: Sequence[RecallRequest]) -> None:
        if any(items_for(request)[0] == 101 for request in requests):
            raise ZeroDivisionError("a bug")

    engine = FakeEngine(fault=fault)
    engine.gate.clear()
    member = made.member(engine)
    made.send("first", history=[1])  # keeps the engine busy while the others gather
    made.flush()
    eventually(engine.busy.is_set)
    for number in range(8):
        made.send(f"r{number}", history=[100 if number == 5 else number])
    made.flush()
    eventually(lambda: member.snapshot().queued == 8)
    engine.gate.set()
    replies = by_id(made.replies.wait(9))
    assert {name for name, reply in replies.items() if reply.status == "ok"} == {
        "first",
        *(f"r{number}" for number in range(8) if number != 5),
    }
    assert code_of(replies["r5"]) == "internal"
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"internal"
    assert engine.batches == [1, 8, 4, 4, 2, 1, 1, 2], "halves, until the culprit stands alone"
    eventually(lambda: made.committed() == 9)
    made.send("after", history=[1])
    made.flush()
    assert made.replies.wait(10)[-1].reply.status == "ok"


def test_an_error_of_one_request_in_a_batch_is_its_own(made: Harness) -> None:
    def reject(request: RecallRequest) -> RequestError | None:
        return RequestError("unknown_catalog", "v9 is not resident") if request.catalog == "v9" else None

    made.member(FakeEngine(reject=reject))
    made.send("r1", catalog="v9")
    made.send("r2")
    made.flush()
    replies = by_id(made.replies.wait(2))
    assert code_of(replies["r1"]) == "unknown_catalog"
    assert replies["r2"].status == "ok"
    eventually(lambda: made.committed() == 2)
    assert made.dead_letters.poll() == [], "asking for a catalog that is gone does not make a bad record"


def test_an_overloaded_engine_is_answered_as_rejected(made: Harness) -> None:
    made.member(FakeEngine(reject=lambda _: RequestError("overloaded", "no pages")))
    made.send("r1")
    made.flush()
    reply = made.replies.wait(1)[0].reply
    assert (reply.status, code_of(reply)) == ("rejected", "overloaded")


def test_a_lost_device_ends_the_process_and_commits_nothing(made: Harness) -> None:
    def fault(_requests: Sequence[RecallRequest]) -> None:
        raise DeviceError("the GPU fell off the bus")

    member = made.member(FakeEngine(fault=fault))
    made.send("r1")
    made.flush()
    eventually(lambda: member.loop.failure)
    assert "GPU" in " ".join(member.snapshot().not_ready)
    assert member.stop() == 1
    assert made.committed() == 0
    assert made.replies.poll() == []


def test_a_failing_process_does_not_even_commit_what_was_confirmed_before(made: Harness) -> None:
    def fault(requests: Sequence[RecallRequest]) -> None:
        if items_for(requests[0])[0] == 101:
            raise DeviceError("the GPU fell off the bus")

    member = made.member(FakeEngine(fault=fault), commit_interval_ms=60_000)
    made.send("good")
    made.flush()
    eventually(lambda: member.events.count["confirmed"] == 1)
    made.send("last", history=[100])
    made.flush()
    eventually(lambda: member.loop.failure)
    assert member.stop() == 1
    assert made.committed() == 0


def test_a_denied_reply_topic_is_a_dead_letter_and_nothing_else(made: Harness) -> None:
    made.member()
    made.send("r1", headers={"reply-topic": b"somebody.elses"})
    made.flush()
    (letter,) = made.dead_letters.wait(1)
    assert letter.headers["dlq.error.class"] == b"reply_topic_denied"
    eventually(lambda: made.committed() == 1)
    assert made.replies.poll() == []


@pytest.mark.parametrize("topic", [REQUESTS, DEAD_LETTERS, "more.requests", "__consumer_offsets"])
def test_a_reply_goes_to_no_topic_of_requests_dead_letters_or_brokers_whatever_prefix_is_allowed(
    made: Harness, topic: str
) -> None:
    made.member(kafka=made.kafka(reply_topics_allowed=("*",), topics={"more.requests": {}}))
    made.send("r1", headers={"reply-topic": topic.encode()})
    made.flush()
    (letter,) = made.dead_letters.wait(1)
    assert letter.headers["dlq.error.class"] == b"reply_topic_denied"
    eventually(lambda: made.committed() == 1)
    assert made.end_of(REQUESTS) == 1


def test_headers_that_cannot_be_read_are_answered_as_a_bad_request(made: Harness) -> None:
    made.member()
    for number in range(64):  # calls that are made often take another way through the interpreter
        made.send(f"good-{number}")
    made.flush()
    made.replies.wait(64)
    value = encode_request("r1", {"history": [1]})
    send_with_header_name(made.cluster.bootstrap_servers, REQUESTS, value, name=b"\xff\xfe")
    made.send("r2")
    made.flush()
    replies = by_id(made.replies.wait(66))
    assert (code_of(replies["r1"]), replies["r2"].status) == ("bad_request", "ok")
    (letter,) = made.dead_letters.wait(1)
    assert (letter.value, letter.headers["dlq.error.message"]) == (value, b"headers: a name is not UTF-8")
    eventually(lambda: made.committed() == 66)


def test_a_deadline_in_the_past_is_answered_expired_without_the_engine(made: Harness) -> None:
    member = made.member()
    made.send("r1", deadline_ms=now_ms() - 1)
    made.send("r2", timestamp=now_ms() - 60_000)
    made.flush()
    replies = [received.reply for received in made.replies.wait(2)]
    assert {(reply.status, code_of(reply)) for reply in replies} == {("expired", "expired")}
    eventually(lambda: made.committed() == 2)
    assert member.events.count["expired:admission"] == 2
    assert member.engine.batches == []
    assert made.dead_letters.poll() == []


def test_a_json_request_gets_a_json_reply(made: Harness) -> None:
    made.member()
    made.send(value=b'{"request_id": "j", "history": [4]}')
    made.flush()
    received = made.replies.wait(1)[0]
    assert received.value is not None
    assert received.value.startswith(b"{")
    assert list(received.reply.items) == [5, 6, 7]


def test_a_malformed_reply_partition_is_answered_as_a_bad_request(made: Harness) -> None:
    made.member()
    made.send("r1", headers={"reply-partition": b"two"})
    made.flush()
    assert code_of(made.replies.wait(1)[0].reply) == "bad_request"


def test_a_tombstone_is_a_dead_letter(made: Harness) -> None:
    made.member()
    made.send(value=b"", key=b"user")
    made.flush()
    made.dead_letters.wait(1)
    eventually(lambda: made.committed() == 1)
