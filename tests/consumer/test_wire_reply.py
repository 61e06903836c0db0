"""Replies on the wire: what the service writes is what clients read, in both codecs."""

import json
import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.wire.errors import Codec, ReplyError, WireError
from consumer.wire.reply import RecallReply, decode_reply, encode_error, encode_reply, reply_as_json, status_of
from engine.errors import ErrorCode
from engine.request import RecallResult
from tests.consumer.wire_examples import CODECS, read, request

int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=8)
floats = st.floats(-1e6, 0, width=32)


@st.composite
def results(draw: st.DrawFn) -> RecallResult:
    count, levels = draw(st.integers(0, 6)), draw(st.integers(1, 4))
    numbers = st.lists(int64, min_size=count, max_size=count).map(lambda ids: np.array(ids, np.int64))
    sids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=count * levels, max_size=count * levels))
    column = st.lists(int64 | names | st.booleans() | st.none(), min_size=count, max_size=count)
    return RecallResult(
        items=draw(numbers | st.lists(names, min_size=count, max_size=count)),
        scores=np.array(draw(st.lists(floats, min_size=count, max_size=count)), np.float32),
        model=draw(names),
        catalog=draw(names),
        beam_widths=tuple(draw(st.lists(st.integers(0, 1024), min_size=levels, max_size=levels))),
        exhausted=draw(st.booleans()),
        truncated=draw(st.booleans()),
        context_tokens=draw(st.integers(0, 10_000)),
        reused_tokens=draw(st.integers(0, 10_000)),
        unknown_items=draw(st.integers(0, 10_000)),
        prefill_ms=draw(st.floats(0, 1e6)),
        decode_ms=draw(st.floats(0, 1e6)),
        sids=np.array(sids, np.int32).reshape(count, levels) if draw(st.booleans()) else None,
        fields=draw(st.none() | st.dictionaries(names, column, max_size=3)),
    )


def same(reply: RecallReply, result: RecallResult) -> bool:
    """Whether the reply says what the result held."""
    arrays = [(reply.items, result.items), (reply.scores, result.scores), (reply.sids, result.sids)]
    plain = ("model", "catalog", "beam_widths", "exhausted", "truncated")
    counts = ("context_tokens", "reused_tokens", "unknown_items")
    return (
        all((got is None and sent is None) or np.array_equal(got, sent) for got, sent in arrays)  # type: ignore[arg-type]  # string ids
        and all(getattr(reply, name) == getattr(result, name) for name in plain + counts)
        and reply.fields == result.fields
    )


@given(results(), st.sampled_from(CODECS), st.dictionaries(names, names, max_size=3))
def test_what_the_service_writes_is_what_a_client_reads(
    result: RecallResult, codec: Codec, labels: dict[str, str]
) -> None:
    wire = read(request(user_id="u", labels=labels), codec)
    reply = decode_reply(encode_reply(wire, result, queue_ms=1.5, total_ms=9.0, degraded=("width",)))
    assert same(reply, result)
    assert (reply.v, reply.status, reply.request_id, reply.user_id) == (1, "ok", "r", "u")
    assert (reply.labels, reply.degraded, reply.error) == (labels, ("width",), None)
    assert reply.timing_ms == {
        "queue": 1.5,
        "prefill": result.prefill_ms,
        "decode": result.decode_ms,
        "total": 9.0,
    }
    assert reply.scores.dtype == np.float32
    assert same(decode_reply(reply_as_json(reply)), result)


@given(results())
def test_a_reply_is_byte_for_byte_what_the_msgpack_package_writes(result: RecallResult) -> None:
    wire = read(request(user_id="u", labels={"a": "b"}))
    for value in (encode_reply(wire, result, queue_ms=1.5, total_ms=9.0), encode_error(wire, "expired", "late")):
        assert msgpack.packb(msgpack.unpackb(value)) == value


RESULT = RecallResult(
    items=np.array([7, 5]),
    scores=np.array([-0.5, -1.25], np.float32),
    model="m",
    catalog="c",
    beam_widths=(4, 8),
    exhausted=True,
    sids=np.array([[1, 2], [3, 4]], np.int32),
)


def test_a_msgpack_reply_holds_scores_and_sids_as_little_endian_binary() -> None:
    fields = msgpack.unpackb(encode_reply(read(request()), RESULT, queue_ms=0, total_ms=0))
    assert fields["items"] == [7, 5]
    assert fields["scores"] == b"\x00\x00\x00\xbf\x00\x00\xa0\xbf"
    assert fields["sids"] == b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0"
    assert fields["degraded"] == []
    assert "error" not in fields


def test_a_json_reply_holds_scores_and_sids_as_arrays() -> None:
    fields = json.loads(encode_reply(read(request(), "json"), RESULT, queue_ms=0, total_ms=0))
    assert fields["items"] == [7, 5]
    assert fields["scores"] == [-0.5, -1.25]
    assert fields["sids"] == [[1, 2], [3, 4]]


def test_a_json_reply_stays_json_when_a_field_holds_nan() -> None:
    result = RecallResult(
        items=["a"],
        scores=np.array([-math.inf], np.float32),
        model="m",
        catalog="c",
        beam_widths=(1,),
        exhausted=False,
        fields={"price": [math.nan]},
    )
    fields = json.loads(encode_reply(read(request(), "json"), result, queue_ms=0, total_ms=0))
    assert (fields["scores"], fields["fields"]) == ([None], {"price": [None]})


STATUS: list[tuple[ErrorCode, str]] = [
    ("expired", "expired"),
    ("cancelled", "expired"),
    ("overloaded", "rejected"),
    ("bad_request", "error"),
    ("unsupported_version", "error"),
    ("too_large", "error"),
    ("no_catalog", "error"),
    ("unknown_catalog", "error"),
    ("need_history", "error"),
    ("internal", "error"),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("code", "status"), STATUS)
def test_a_reply_without_items_names_its_error(code: ErrorCode, status: str, codec: Codec) -> None:
    wire = read(request(labels={"a": "b"}), codec)
    reply = decode_reply(encode_error(wire, code, "why", queue_ms=3.0, total_ms=4.0))
    assert status_of(code) == reply.status == status
    assert reply.error is not None
    assert (reply.error.code, reply.error.message) == (code, "why")
    assert (reply.request_id, reply.labels, len(reply.items), len(reply.scores)) == ("r", {"a": "b"}, 0, 0)
    assert reply.timing_ms["queue"] == 3.0


def test_a_record_that_could_not_be_read_is_answered_without_a_request_id() -> None:
    reply = decode_reply(encode_error(WireError("bad_request", "why"), "bad_request", "why"))
    assert (reply.request_id, reply.user_id, reply.labels, reply.status) == (None, None, {}, "error")


BROKEN: list[tuple[str, Any]] = [
    ("nothing", None),
    ("junk", b"\xc1"),
    ("no map", msgpack.packb([1])),
    ("no status", msgpack.packb({"v": 1})),
    ("unknown status", msgpack.packb({"v": 1, "status": "odd"})),
    ("broken scores", msgpack.packb({"v": 1, "status": "ok", "items": [1], "scores": b"abc"})),
    ("broken sids", msgpack.packb({"v": 1, "status": "ok", "items": [1], "sids": b"abcd", "beam_widths": [1, 1]})),
    ("items a map", msgpack.packb({"v": 1, "status": "ok", "items": {"a": 1}})),
    ("items mixed", msgpack.packb({"v": 1, "status": "ok", "items": ["a", 1]})),
    ("items of floats", msgpack.packb({"v": 1, "status": "ok", "items": [1.5]})),
    ("item over int64", msgpack.packb({"v": 1, "status": "ok", "items": [2**63]})),
    ("broken json", b"{"),
]


@pytest.mark.parametrize("value", [row[1] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_what_is_no_reply_is_refused(value: bytes | None) -> None:
    with pytest.raises(ReplyError, match="not a reply"):
        decode_reply(value)


def test_a_reply_of_another_version_is_refused() -> None:
    with pytest.raises(ReplyError, match="version 2"):
        decode_reply(msgpack.packb({"v": 2, "status": "ok"}))


def test_error_codes_of_a_later_version_and_unknown_fields_are_read() -> None:
    value = msgpack.packb({"v": 1, "status": "error", "error": {"code": "new", "message": "m"}, "later": [1]})
    reply = decode_reply(value)
    assert reply.error is not None
    assert reply.error.code == "new"
