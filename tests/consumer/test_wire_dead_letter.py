"""Dead letters: the original byte for byte, bounded headers, replaced on replay, cut only where nothing else helps."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumer.wire.dead_letter import MAX_MESSAGE_BYTES, DeadLetter, SourceRecord, dead_letter
from consumer.wire.headers import Headers, record_size
from consumer.wire.stored_letter import Origin, StoredLetter

KAFKA_OVERHEAD = 72
"""What a broker counts beside value and headers for a record alone in its batch."""

MARKS = ["dlq.truncated", "dlq.headers.dropped"]
NAMES = [*MARKS, "dlq.attempt", *(f"dlq.original.{n}" for n in ("topic", "partition", "offset", "timestamp"))]


def record(value: bytes | None = b"value", key: bytes | None = b"key", headers: Headers = ()) -> SourceRecord:
    return SourceRecord("requests", 3, 42, 1_700_000_000_000, key, value, headers)


def letter(source: SourceRecord, message: str = "why", max_bytes: int = 1_000_000) -> DeadLetter:
    return dead_letter(
        source, error_class="WireError", message=message, stage="decode", group="recallstream", max_bytes=max_bytes
    )


def test_a_dead_letter_says_what_happened_where() -> None:
    got = letter(record(headers=[("correlation-id", b"\x00\xff"), ("trace", None), ("trace", b"2")]))
    assert (got.key, got.value) == (b"key", b"value")
    assert got.headers == [
        ("dlq.error.class", b"WireError"),
        ("dlq.error.message", b"why"),
        ("dlq.error.stage", b"decode"),
        ("dlq.original.topic", b"requests"),
        ("dlq.original.partition", b"3"),
        ("dlq.original.offset", b"42"),
        ("dlq.original.timestamp", b"1700000000000"),
        ("dlq.consumer.group", b"recallstream"),
        ("dlq.attempt", b"1"),
        ("correlation-id", b"\x00\xff"),
        ("trace", None),
        ("trace", b"2"),
    ]


def test_a_record_without_key_or_value_stays_without() -> None:
    got = letter(record(value=None, key=None))
    assert (got.key, got.value) == (None, None)


@given(st.text(max_size=700) | st.text("aü€𝄞\ud800", min_size=400, max_size=700))
def test_the_message_is_at_most_512_bytes_of_text(message: str) -> None:
    got = dict(letter(record(), message).headers)["dlq.error.message"]
    assert got is not None
    assert len(got) <= MAX_MESSAGE_BYTES
    whole = message.encode("utf-8", "replace").decode()
    assert whole.startswith(got.decode("utf-8"))
    assert len(got) > MAX_MESSAGE_BYTES - 4 or got.decode() == whole


def test_headers_are_replaced_on_replay_and_attempts_counted() -> None:
    first = letter(record(headers=[("correlation-id", b"c")]), "first")
    again = letter(SourceRecord("requests", 0, 99, 5, first.key, first.value, first.headers), "second")
    assert [name for name, _ in again.headers] == [name for name, _ in first.headers]
    headers = dict(again.headers)
    assert (headers["dlq.error.message"], headers["dlq.original.offset"]) == (b"second", b"99")
    assert (headers["dlq.attempt"], headers["correlation-id"]) == (b"2", b"c")


def test_a_thousand_replays_do_not_grow_the_record() -> None:
    got = letter(record(headers=[("correlation-id", b"c")]))
    sizes = set()
    for _ in range(1_000):
        got = letter(SourceRecord("requests", 3, 42, 1_700_000_000_000, got.key, got.value, got.headers))
        sizes.add(record_size(got.key, got.value, got.headers))
    assert max(sizes) - min(sizes) <= 3, "only the digits of the attempt"


def test_a_replay_carries_its_attempt_and_the_next_dead_letter_names_it() -> None:
    first = letter(record(headers=[("correlation-id", b"c"), ("trace", None)]))
    stored = StoredLetter.of(SourceRecord("dead", 1, 7, 5, first.key, first.value, first.headers))
    assert (stored.at, stored.error_class, stored.stage, stored.message) == ("1:7", "WireError", "decode", "why")
    assert stored.origin == Origin("requests", 3, 42, 1_700_000_000_000)
    again = stored.replay_headers()
    assert list(again) == [("correlation-id", b"c"), ("trace", None), ("dlq.attempt", b"2")]
    second = letter(record(headers=again))
    assert dict(second.headers)["dlq.attempt"] == b"2"
    assert len(second.headers) == len(first.headers)


@given(st.lists(st.tuples(st.text(max_size=9) | st.sampled_from(NAMES), st.binary(max_size=30) | st.none())))
def test_any_record_can_be_read_back_as_a_dead_letter(headers: list[tuple[str, bytes | None]]) -> None:
    stored = StoredLetter.of(record(headers=headers))
    lost = {*MARKS} & {name for name, _ in headers}
    assert (stored.obstacle is None) == (stored.origin is not None and not lost)
    assert stored.attempt >= 1
    assert [name for name, _ in stored.replay_headers() if name.startswith("dlq.")] == ["dlq.attempt"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("topic", b"a/b"),
        ("topic", b""),
        ("partition", b"-1"),
        ("partition", b"%d" % 2**31),  # more than the client's produce() can take
        ("offset", b"x"),
        ("offset", b"1\n"),
    ],
)
def test_a_letter_without_a_place_to_go_back_to_is_not_replayed(name: str, content: bytes) -> None:
    headers = [(n, content if n == f"dlq.original.{name}" else c) for n, c in letter(record()).headers]
    assert StoredLetter.of(record(headers=headers)).obstacle == "it does not say where it came from"


def test_a_letter_of_a_record_with_any_timestamp_can_be_replayed() -> None:
    stamped = SourceRecord("requests", 3, 42, 2**63 - 1, b"key", b"value")
    assert StoredLetter.of(record(headers=letter(stamped).headers)).obstacle is None


def test_a_letter_that_was_cut_is_not_replayed() -> None:
    cut = letter(record(b"v" * 9_000), max_bytes=2_000)
    assert StoredLetter.of(record(headers=cut.headers)).obstacle == "its value was cut or its key dropped"


@pytest.mark.parametrize("attempt", [b"", b"x", b"-1", b"9" * 50, "²".encode(), None])
def test_a_senseless_attempt_starts_over(attempt: bytes | None) -> None:
    assert dict(letter(record(headers=[("dlq.attempt", attempt)])).headers)["dlq.attempt"] == b"1"


def test_original_headers_that_do_not_fit_are_left_out_and_the_value_stays_whole() -> None:
    headers = [("a", b"1"), ("huge", b"x" * 5_000), ("b", b"2")]
    got = letter(record(b"v" * 1_000, headers=headers), max_bytes=3_000)
    assert got.value == b"v" * 1_000
    assert [name for name, _ in got.headers if not name.startswith("dlq.")] == ["a", "b"]
    assert "dlq.truncated" not in dict(got.headers)
    assert dict(got.headers)["dlq.headers.dropped"] == b"true"
    assert StoredLetter.of(record(headers=got.headers)).obstacle == "headers of it were left out"
    assert "dlq.headers.dropped" not in dict(letter(record(b"v" * 1_000, headers=headers)).headers)


def test_a_value_is_cut_exactly_when_it_does_not_fit() -> None:
    limit = 10_000
    overhead = record_size(b"key", b"", letter(record()).headers)
    whole = letter(record(b"v" * (limit - overhead)), max_bytes=limit)
    assert whole.value == b"v" * (limit - overhead)
    assert "dlq.truncated" not in dict(whole.headers)
    cut = letter(record(b"v" * (limit - overhead + 1)), max_bytes=limit)
    assert cut.value is not None
    assert 0 < len(cut.value) < limit - overhead
    assert dict(cut.headers)["dlq.truncated"] == b"true"


@given(
    value=st.integers(0, 5_000),
    key=st.integers(0, 5_000),
    headers=st.lists(st.tuples(st.text(max_size=20), st.integers(0, 3_000)), max_size=6),
    limit=st.integers(2_000, 6_000),
    message=st.text(max_size=700),
)
@example(value=0, key=2474, headers=[("", 22)], limit=2942, message="\x80\U00010000\U00010000")
def test_a_dead_letter_always_fits_its_topic(
    value: int, key: int, headers: list[tuple[str, int]], limit: int, message: str
) -> None:
    source = record(b"v" * value, b"k" * key, [(name, b"h" * size) for name, size in headers])
    got = letter(source, message, limit)
    sent = [*got.headers]
    size = KAFKA_OVERHEAD + len(got.key or b"") + len(got.value or b"")
    size += sum(len(name.encode()) + len(content or b"") + 6 for name, content in sent)
    assert size <= limit
    assert source.value is not None
    assert source.value.startswith(got.value or b"")
    original = [name for name, _ in source.headers if not name.startswith("dlq.")]
    kept = [name for name, _ in sent if not name.startswith("dlq.")]
    if "dlq.headers.dropped" in dict(sent):
        assert kept != original
        assert "dlq.truncated" not in dict(sent)
    elif "dlq.truncated" not in dict(sent):
        assert kept == original
    assert (got.value == source.value and got.key == source.key) != ("dlq.truncated" in dict(sent))


def test_a_key_that_leaves_no_room_is_dropped() -> None:
    got = letter(record(b"value", b"k" * 5_000), max_bytes=2_000)
    assert (got.key, got.value) == (None, b"value")
    assert dict(got.headers)["dlq.truncated"] == b"true"
