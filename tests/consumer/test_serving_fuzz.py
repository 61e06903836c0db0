"""Hostile records through the intake's reader, to the error reply and dead letter they come to, in bounded memory."""

import gc
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable

import msgpack
import pytest

from consumer.serving.deadlines import Moment
from consumer.serving.in_flight import Denied, Done, InFlight, Outcome
from consumer.serving.offsets import OffsetTracker
from consumer.serving.reader import RequestReader
from consumer.serving.repeats import RepeatCache
from consumer.serving.settings import BatchSettings
from consumer.stream.partition import Partition
from consumer.stream.settings import KafkaSettings
from consumer.wire.dead_letter import SourceRecord, dead_letter
from consumer.wire.headers import Headers, record_size
from consumer.wire.reply import decode_reply, encode_error
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.errors import RequestError
from tests.consumer.fake_engine import FakeEngine
from tests.consumer.test_wire_fuzz import SEEDS, mutated
from tests.consumer.wire_examples import CODECS, packed, request

PLACE = Partition("t", 0)
NOW = Moment(1_000_000.0, 50.0)
LARGEST = 1_000_000
FIXED_BYTES, BYTES_PER_BYTE = 1_000_000, 40
"""What one record may take while it is read: an element of a msgpack array is a byte there and an object here."""
LEFT_BYTES = 1_000_000
"""What all of them together may leave behind."""


def truncated(rng: random.Random) -> bytes:
    value = rng.choice(SEEDS)
    return value[: rng.randrange(len(value))]


def trailing(rng: random.Random) -> bytes:
    return rng.choice(SEEDS) + rng.choice(
        (rng.randbytes(rng.randrange(1, 50)), rng.choice(SEEDS), b" ", b"\x00" * 5_000)
    )


def nested(rng: random.Random) -> bytes:
    depth = rng.choice((10, 500, 5_000))
    opened, closed = rng.choice(((b"\x91", b"\x01"), (b"\x81\xa1a", b"\xc0"), (b"[", b"]" * depth), (b'{"a":', b"")))
    inner = opened * depth + closed
    if opened[:1] in b"[{":
        return rng.choice((inner, b'{"request_id":"r","history":' + inner + b"}", b'{"later":' + inner + b"}"))
    return rng.choice((inner, b"\x82\xaarequest_id\xa1r\xa7history" + inner, b"\x81\xa5later" + inner))


def giant(rng: random.Random) -> bytes:
    """Sizes that are claimed, mostly; sometimes what is claimed is there."""
    field = msgpack.packb(rng.choice(("history", "tokens", "exclude", "labels", "later", "context", "return_fields")))
    head: bytes = b"\x82\xaarequest_id\xa1r" + field
    kind = rng.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"))
    if rng.random() < 0.98:
        return head + kind + rng.choice((2**32 - 1, 2**31, 10**6, 20_001)).to_bytes(4, "big") + rng.randbytes(20)
    count = rng.choice((20_000, 20_001, 300_000))
    if rng.random() < 0.5:
        return head + b"\xdd" + count.to_bytes(4, "big") + b"\x01" * count
    return b'{"request_id":"r","history":[' + b"1," * count + b"1]}"


def mistyped(rng: random.Random) -> bytes:
    names = ("request_id", "history", "tokens", "beam", "filter", "top_k", "deadline_ms", "labels", "context", "v")
    wrong: tuple[object, ...] = (
        -1,
        2**64 - 1,
        1.5,
        float("inf"),
        "",
        "x" * 300,
        True,
        [],
        [[]],
        {},
        {"a": []},
        [1, "a"],
        [None],
    )
    fields = {name: rng.choice(wrong) for name in rng.sample(names, rng.randrange(1, 5))}
    return packed({**request(), **fields}, rng.choice(CODECS))


KINDS: tuple[Callable[[random.Random], bytes], ...] = (mutated, truncated, trailing, nested, giant, mistyped)
NAMES = ("correlation-id", "reply-topic", "reply-partition", "kafka_replyPartition", "traceparent", "dlq.attempt", "x")


def record_of(rng: random.Random, offset: int) -> SourceRecord:
    headers: Headers = [
        (rng.choice(NAMES), rng.choice((None, b"", b"replies", b"1", rng.randbytes(rng.randrange(40)))))
        for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    key = rng.choice((None, b"", b"user", rng.randbytes(9)))
    return SourceRecord("t", 0, offset, 1_000_000, key, rng.choice(KINDS)(rng), headers)


def kind_of(reader: RequestReader, tracker: OffsetTracker, record: SourceRecord) -> str:
    """Read it, write what it comes to, complete its offset."""
    ownership = tracker.ownership(PLACE)
    assert ownership is not None
    assert ownership.deliver(record.offset, record.timestamp_ms)
    read = reader.read(record, ownership, NOW)
    assert ownership.finish(record.offset)
    assert tracker.span() == 0
    if isinstance(read, InFlight):
        assert read.request is not None
        return "request"
    if isinstance(read, Done):
        return "event"
    if isinstance(read, Denied):
        error = RequestError("bad_request", read.message)
    else:
        assert isinstance(read, Outcome)
        assert isinstance(read.answer, RequestError)
        error = read.answer
        reply = decode_reply(encode_error(read.item.addressee, error.code, error.message))
        assert reply.request_id == read.item.addressee.request_id
    letter = dead_letter(
        record, error_class=error.code, message=error.message, stage="decode", group="g", max_bytes=LARGEST
    )
    assert record_size(letter.key, letter.value, letter.headers) <= LARGEST
    return "denied" if isinstance(read, Denied) else error.code


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=[pytest.mark.stress, pytest.mark.timeout(900)])])
def test_hostile_records_are_requests_or_typed_errors_in_bounded_memory(count: int) -> None:
    kafka = KafkaSettings(request_topic="t", reply_topic="replies")
    repeats = RepeatCache(BatchSettings(), lambda: None, lambda: NOW.monotonic)
    reader = RequestReader(FakeEngine(sizing=lambda _: 1), kafka, WireLimits(), RecallDefaults(), repeats)
    tracker, rng, seen = OffsetTracker(), random.Random(20_251_129), Counter[str]()
    tracker.assign({PLACE: 0})
    kind_of(reader, tracker, record_of(rng, 0))
    gc.collect()
    tracemalloc.start()
    try:
        begin, _ = tracemalloc.get_traced_memory()
        for offset in range(1, count + 1):
            record = record_of(rng, offset)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            seen[kind_of(reader, tracker, record)] += 1
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < FIXED_BYTES + BYTES_PER_BYTE * len(record.value or b""), record
        del record
        gc.collect()
        end, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen.total() == count
    assert seen.keys() >= {"request", "denied", "bad_request", "too_large", "unsupported_version"}, seen
    assert "internal" not in seen, "each of them is foreseen"
    assert end - begin < LEFT_BYTES
    assert dict(tracker.committable()) == {PLACE: count + 1}
