"""Headers: our names and Spring's, what a reply carries back, and the size of a record."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.wire.headers import Headers, RequestHeaders, record_size, reply_headers, reply_topic_allowed

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_our_headers_are_read() -> None:
    headers = RequestHeaders.parse(
        [
            ("correlation-id", b"\x00\xff"),
            ("reply-topic", b"answers"),
            ("reply-partition", b"7"),
            ("traceparent", TRACE),
        ]
    )
    assert headers == RequestHeaders(b"\x00\xff", "correlation-id", "answers", 7, TRACE, None)


def test_springs_headers_are_read() -> None:
    headers = RequestHeaders.parse(
        [
            ("kafka_correlationId", b"\x80" * 16),
            ("kafka_replyTopic", b"answers"),
            ("kafka_replyPartition", b"\x00\x00\x01\x02"),
        ]
    )
    assert headers == RequestHeaders(b"\x80" * 16, "kafka_correlationId", "answers", 258)


def test_our_names_win_over_springs() -> None:
    headers = RequestHeaders.parse(
        [
            ("kafka_correlationId", b"theirs"),
            ("correlation-id", b"ours"),
            ("reply-topic", b"ours"),
            ("kafka_replyTopic", b"theirs"),
            ("kafka_replyPartition", b"\0\0\0\2"),
            ("reply-partition", b"1"),
        ]
    )
    assert headers == RequestHeaders(b"ours", "correlation-id", "ours", 1)


def test_the_last_of_a_repeated_header_counts() -> None:
    headers = RequestHeaders.parse([("correlation-id", b"a"), ("correlation-id", b"b")])
    assert headers.correlation_id == b"b"


@pytest.mark.parametrize("headers", [None, [], [("other", b"x")], [("correlation-id", None), ("reply-topic", None)]])
def test_missing_headers_and_null_values_are_absent(headers: Headers | None) -> None:
    assert RequestHeaders.parse(headers) == RequestHeaders()


def test_an_empty_correlation_id_is_one() -> None:
    assert RequestHeaders.parse([("correlation-id", b"")]).correlation_id == b""


@given(st.integers(0, 2**31 - 1))
def test_every_partition_is_read_as_text_and_as_springs_four_bytes(partition: int) -> None:
    text = RequestHeaders.parse([("reply-partition", str(partition).encode())])
    spring = RequestHeaders.parse([("kafka_replyPartition", struct.pack(">i", partition))])
    assert text.reply_partition == spring.reply_partition == partition
    assert text.error is spring.error is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("reply-partition", b""),
        ("reply-partition", b"-1"),
        ("reply-partition", b"1.0"),
        ("reply-partition", b"2147483648"),
        ("reply-partition", b"9" * 5000),
        ("reply-partition", "\u0661".encode()),
        ("reply-partition", b"\0\0\0\1"),
        ("kafka_replyPartition", b""),
        ("kafka_replyPartition", b"\0\0\1"),
        ("kafka_replyPartition", b"\0\0\0\0\1"),
        ("kafka_replyPartition", b"\xff\xff\xff\xff"),
    ],
)
def test_a_malformed_reply_partition_is_named_and_left_out(name: str, content: bytes) -> None:
    headers = RequestHeaders.parse([(name, content), ("reply-topic", b"answers"), ("correlation-id", b"c")])
    assert headers.error is not None
    assert headers.error.startswith(f"header {name}: must be")
    assert (headers.reply_topic, headers.reply_partition, headers.correlation_id) == ("answers", None, b"c")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"junk",
        TRACE[:-1],
        TRACE + b"0",
        TRACE.upper(),
        b"ff" + TRACE[2:],
        b"00-" + b"0" * 32 + TRACE[35:],
        TRACE[:36] + b"0" * 16 + TRACE[52:],
    ],
)
def test_a_malformed_traceparent_is_not_continued(content: bytes) -> None:
    assert RequestHeaders.parse([("traceparent", content)]).traceparent is None


STATE = b"vendor=t61rcWkgMzE,rojo=00f067aa0ba902b7"


def test_the_trace_state_goes_on_with_its_traceparent() -> None:
    request = RequestHeaders.parse([("tracestate", STATE), ("traceparent", TRACE)])
    headers = reply_headers(request, topic="t", partition=0, offset=0, catalog=None)
    assert headers[-2:] == [("traceparent", TRACE), ("tracestate", STATE)]


@pytest.mark.parametrize(
    "headers",
    [
        [("tracestate", STATE)],
        [("traceparent", TRACE[:-1]), ("tracestate", STATE)],
        [("traceparent", TRACE), ("tracestate", b"a=1\r\nb=2")],
        [("traceparent", TRACE), ("tracestate", b"a=" + b"x" * 511)],
        [("traceparent", TRACE), ("tracestate", b"")],
    ],
)
def test_a_trace_state_without_its_parent_or_malformed_is_dropped(headers: Headers) -> None:
    assert RequestHeaders.parse(headers).tracestate is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["correlation-id", "reply-topic", "reply-partition", "traceparent", "tracestate"])
            | st.sampled_from(["kafka_correlationId", "kafka_replyTopic", "kafka_replyPartition"]),
            st.none() | st.binary(max_size=60),
        ),
        max_size=8,
    )
)
def test_any_headers_can_be_read(headers: list[tuple[str, bytes | None]]) -> None:
    RequestHeaders.parse(headers)


@pytest.mark.parametrize("name", ["correlation-id", "kafka_correlationId"])
def test_a_reply_echoes_the_correlation_id_under_the_name_that_came(name: str) -> None:
    request = RequestHeaders.parse([(name, b"\x00\xfe\xff"), ("traceparent", TRACE)])
    assert reply_headers(request, topic="requests", partition=3, offset=2**40, catalog="v1") == [
        (name, b"\x00\xfe\xff"),
        ("request-topic", b"requests"),
        ("request-partition", b"3"),
        ("request-offset", b"1099511627776"),
        ("traceparent", TRACE),
        ("catalog", b"v1"),
    ]


def test_a_reply_carries_no_header_for_what_is_not_known() -> None:
    names = [name for name, _ in reply_headers(RequestHeaders(), topic="t", partition=0, offset=0, catalog=None)]
    assert names == ["request-topic", "request-partition", "request-offset"]


ALLOWED = ("answers", "team-a.*")


@pytest.mark.parametrize("topic", ["answers", "team-a.", "team-a.replies"])
def test_listed_topics_and_prefixes_may_be_answered_to(topic: str) -> None:
    assert reply_topic_allowed(topic, ALLOWED)


@pytest.mark.parametrize(
    "topic",
    ["", "answers2", "Answers", "team-b.x", "team-a", "team-a.*", "team-a.x y", "team-a.\x00", "team-a." + "x" * 243],
)
def test_other_topics_and_illegal_names_may_not(topic: str) -> None:
    assert not reply_topic_allowed(topic, ALLOWED)


def test_a_reply_topic_that_is_no_text_is_never_allowed() -> None:
    topic = RequestHeaders.parse([("reply-topic", b"\xff\xfe")]).reply_topic
    assert topic is not None
    assert not reply_topic_allowed(topic, ("*",))
    assert reply_topic_allowed("anything", ("*",))


def test_the_size_of_a_record_counts_its_headers() -> None:
    bare = record_size(b"key", b"value", [])
    assert bare >= 8 + 72
    assert record_size(b"key", b"value", [("name", b"x" * 1000)]) >= bare + 1004 + 6
    assert record_size(None, None, [("n", None)]) > record_size(None, None, [])
