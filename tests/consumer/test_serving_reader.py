"""What the settings promise for a single record, without a broker."""

from typing import Any

import msgspec

from consumer.serving.deadlines import Moment
from consumer.serving.in_flight import Denied, Done, InFlight, Outcome, Repeat
from consumer.serving.load_settings import LoadSettings
from consumer.serving.offsets import Ownership
from consumer.serving.reader import RequestReader
from consumer.serving.repeats import RepeatCache
from consumer.serving.settings import BatchSettings
from consumer.stream.partition import Partition
from consumer.stream.settings import KafkaSettings
from consumer.wire.dead_letter import SourceRecord
from consumer.wire.headers import Headers
from consumer.wire.outgoing import encode_request
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.errors import RequestError
from tests.consumer.fake_engine import FakeEngine

NOW = Moment(1_000_000.0, 50.0)


def read(
    value: bytes,
    headers: Headers = (),
    allowed: tuple[str, ...] = (),
    topic: str = "t",
    topics: Any = None,
    load: LoadSettings | None = None,
) -> InFlight | Outcome | Repeat | Denied | Done:
    repeats = RepeatCache(BatchSettings(), lambda: None, lambda: NOW.monotonic)
    defaults = RecallDefaults(deadline_ms=2_000)
    kafka = KafkaSettings(request_topic="t", reply_topic="replies", reply_topics_allowed=allowed, topics=topics or {})
    reader = RequestReader(FakeEngine(), kafka, WireLimits(), defaults, repeats, load)
    record = SourceRecord(topic, 0, 7, 1_000_000, b"user", value, headers)
    return reader.read(record, Ownership(Partition(topic, 0), 1, 7), NOW)


def test_a_good_request_is_sized_timed_and_addressed() -> None:
    item = read(encode_request("r", {"history": [1, 2, 3]}))
    assert isinstance(item, InFlight)
    assert (item.tokens, item.admitted, item.deadline, item.reply_topic) == (3, 50.0, 52.0, "replies")
    assert item.request is not None


def test_what_was_read_of_a_record_counts_for_admission_as_well() -> None:
    short = [f"{number % 900:03d}" for number in range(20_000)]
    for fields in ({"history": [1], "exclude": short}, {"type": "event", "items": list(range(100)) * 200}):
        value = msgspec.msgpack.encode({"request_id": "r", **fields})
        read_as = read(value)
        item = read_as if isinstance(read_as, InFlight) else read_as.item
        assert item.size >= 20_000 * 8
    packed = read(encode_request("r", {"history": list(range(20_000))}))
    assert isinstance(packed, InFlight)
    assert packed.size < 20_000 * 8 + 500, "binary ids are the bytes of the record"


def test_a_topic_has_defaults_and_a_reply_topic_of_its_own() -> None:
    own = {"search": {"template": "s", "width": 7, "deadline_ms": 100, "reply_topic": "found"}}
    value = encode_request("r", {"history": [1]})
    item, plain = read(value, topic="search", topics=own), read(value, topics=own)
    assert isinstance(item, InFlight)
    assert item.request is not None
    assert (item.request.template, item.request.beam.widths[0], item.request.top_k) == ("s", 100, 100)
    assert (item.reply_topic, item.deadline) == ("found", 50.1)
    assert isinstance(plain, InFlight)
    assert plain.request is not None
    assert (plain.request.template, plain.request.beam.widths[0]) == ("default", 256)
    assert (plain.reply_topic, plain.deadline) == ("replies", 52.0)
    assert isinstance(read(value, [("reply-topic", b"found")], topics=own), InFlight), "any request may name it"


def test_a_request_overrides_the_defaults_of_its_topic() -> None:
    value = encode_request("r", {"history": [1], "template": "t", "beam": {"width": 3}, "deadline_ms": 1_001_000})
    item = read(value, topic="search", topics={"search": {"template": "s", "width": 7, "deadline_ms": 100}})
    assert isinstance(item, InFlight)
    assert item.request is not None
    assert (item.request.template, item.request.beam.widths[0], item.deadline) == ("t", 3, 51.0)


def test_a_request_says_its_priority_and_its_topic_or_a_label_says_who_calls() -> None:
    value = encode_request("r", {"history": [1], "priority": 8, "labels": {"app": "home"}})
    by_topic, by_label = read(value), read(value, load=LoadSettings(share_label="app"))
    unlabelled = read(encode_request("r", {"history": [1]}), load=LoadSettings(share_label="app"))
    assert isinstance(by_topic, InFlight)
    assert isinstance(by_label, InFlight)
    assert isinstance(unlabelled, InFlight)
    assert (by_topic.priority, unlabelled.priority) == (8, 5)
    assert (by_topic.caller, by_label.caller, unlabelled.caller) == ("t", "home", "")


def test_callers_that_the_shares_do_not_name_are_one_so_that_nobody_can_be_many() -> None:
    load = LoadSettings(share_label="app", shares={"home": 2.0})

    def caller(app: str) -> str:
        item = read(encode_request("r", {"history": [1], "labels": {"app": app}}), load=load)
        assert isinstance(item, InFlight)
        return item.caller

    assert [caller("home"), *(caller(f"made up {number}") for number in range(3))] == ["home", "", "", ""]


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


def test_what_a_prompt_does_not_show_of_a_history_is_not_kept_with_the_request() -> None:
    item = read(encode_request("r", {"history": list(range(1_000))}))  # of which the model uses 200, in blocks of 50
    assert isinstance(item, InFlight)
    assert item.request is not None
    assert item.request.history is not None
    assert [int(each) for each in item.request.history] == list(range(750, 1_000))
