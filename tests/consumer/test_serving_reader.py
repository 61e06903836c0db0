"""What the settings promise for a single record, without a broker."""

from consumer.serving.deadlines import Moment
from consumer.serving.in_flight import Denied, InFlight, Outcome, Repeat
from consumer.serving.offsets import Ticket
from consumer.serving.reader import RequestReader
from consumer.serving.repeats import RepeatCache
from consumer.serving.settings import BatchSettings
from consumer.stream.partition import Partition
from consumer.wire.dead_letter import SourceRecord
from consumer.wire.headers import Headers
from consumer.wire.outgoing import encode_request
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.errors import RequestError
from tests.consumer.fake_engine import FakeEngine

NOW = Moment(1_000_000.0, 50.0)


def read(value: bytes, headers: Headers = (), allowed: tuple[str, ...] = ()) -> InFlight | Outcome | Repeat | Denied:
    repeats = RepeatCache(BatchSettings(), lambda: None, lambda: NOW.monotonic)
    defaults = RecallDefaults(deadline_ms=2_000)
    reader = RequestReader(FakeEngine(), ("replies", *allowed), WireLimits(), defaults, repeats)
    record = SourceRecord("t", 0, 7, 1_000_000, b"user", value, headers)
    return reader.read(record, Ticket(Partition("t", 0), 7, 1), NOW)


def test_a_good_request_is_sized_timed_and_addressed() -> None:
    item = read(encode_request("r", {"history": [1, 2, 3]}))
    assert isinstance(item, InFlight)
    assert (item.tokens, item.admitted, item.deadline, item.reply_topic) == (3, 50.0, 52.0, "replies")
    assert item.request is not None


def test_only_allowed_reply_topics_are_taken() -> None:
    value = encode_request("r", {"history": [1]})
    for topic, allowed, taken in (
        (b"replies", (), True),
        (b"team.a", ("team.*",), True),
        (b"exact", ("exact",), True),
        (b"exactly", ("exact",), False),
        (b"other", ("team.*",), False),
        (b"team.\n", ("team.*",), False),
        (b"\xff", ("*",), False),
    ):
        item = read(value, [("reply-topic", topic)], allowed)
        assert isinstance(item, InFlight) is taken, topic
        assert isinstance(item, Denied) is not taken, topic


def test_a_bad_record_for_a_denied_topic_is_denied_not_answered() -> None:
    assert isinstance(read(b"\xc1", [("reply-topic", b"elsewhere"), ("correlation-id", b"c")]), Denied)


def test_a_record_that_names_neither_request_nor_correlation_has_no_address() -> None:
    outcome = read(b"\xc1")
    assert isinstance(outcome, Outcome)
    assert outcome.item.reply_topic is None
    assert isinstance(outcome.answer, RequestError)
    assert outcome.answer.code == "bad_request"


def test_a_request_that_is_due_already_is_not_validated() -> None:
    outcome = read(encode_request("r", {"history": [1], "top_k": 5_000, "deadline_ms": 999_000}))
    assert isinstance(outcome, Outcome)
    assert isinstance(outcome.answer, RequestError)
    assert outcome.answer.code == "expired"
