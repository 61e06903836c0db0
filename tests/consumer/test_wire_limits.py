"""Bounds of a record: each at its limit and one over, and how little a hostile record can make the decoder allocate."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from consumer.wire.codec import MAX_JSON_NESTING
from consumer.wire.errors import Codec, WireError
from consumer.wire.fields import MAX_FIELDS, MAX_LABELS, MAX_WIDTHS
from consumer.wire.request import MAX_MESSAGE, decode
from consumer.wire.settings import WireLimits
from tests.consumer.wire_examples import CODECS, LIMITS, packed, read, refusal, request

SMALL = WireLimits(max_history=5, max_tokens=6, max_exclude=4, max_tags=3, max_context=2, max_fields=3, max_string=8)


def keys(count: int) -> dict[str, int]:
    return {f"k{n}": n for n in range(count)}


SIZES: list[tuple[str, int, Callable[[int], dict[str, Any]]]] = [
    ("history", 5, lambda n: {"history": [1] * n}),
    ("tokens", 6, lambda n: {"history": None, "tokens": [1] * n}),
    ("exclude", 4, lambda n: {"exclude": [1] * n}),
    ("filter.any", 3, lambda n: {"filter": {"any": ["t"] * n}}),
    ("filter.all", 3, lambda n: {"filter": {"all": ["t"] * n}}),
    ("filter.none", 3, lambda n: {"filter": {"none": ["t"] * n}}),
    ("context", 2, lambda n: {"context": keys(n)}),
    ("return_fields", 3, lambda n: {"return_fields": ["f"] * n}),
    ("labels", MAX_LABELS, lambda n: {"labels": {f"k{m}": "" for m in range(n)}}),
    ("beam.widths", MAX_WIDTHS, lambda n: {"beam": {"widths": [1] * n}}),
    ("beam", MAX_FIELDS, lambda n: {"beam": {"width": 1, **keys(n - 1)}}),
    ("the value", MAX_FIELDS, lambda n: keys(n - 2)),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("name", "most", "fields"), SIZES, ids=[row[0] for row in SIZES])
def test_entries_at_the_limit_pass_and_one_more_is_too_large(
    name: str, most: int, fields: Callable[[int], dict[str, Any]], codec: Codec
) -> None:
    read(request(**fields(most)), codec, SMALL)
    error = refusal(packed(request(**fields(most + 1)), codec), SMALL)
    assert error.code == "too_large"
    assert error.message == f"{name}: {most + 1} entries, at most {most} are allowed"


@pytest.mark.parametrize(("name", "most", "width"), [("history", 5, 8), ("tokens", 6, 4)])
def test_binary_at_the_limit_passes_and_one_entry_more_is_too_large(name: str, most: int, width: int) -> None:
    read({"request_id": "r", name: bytes(width * most)}, limits=SMALL)
    error = refusal(packed({"request_id": "r", name: bytes(width * (most + 1))}), SMALL)
    assert (error.code, error.message) == ("too_large", f"{name}: {most + 1} entries, at most {most} are allowed")


STRINGS: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("history", lambda text: {"history": [text]}),
    ("exclude", lambda text: {"exclude": ["a", text]}),
    ("template", lambda text: {"template": text}),
    ("catalog", lambda text: {"catalog": text}),
    ("return_fields", lambda text: {"return_fields": ["a", text]}),
    ("filter.any", lambda text: {"filter": {"any": [text]}}),
    ("filter.all", lambda text: {"filter": {"all": [text]}}),
    ("filter.none", lambda text: {"filter": {"none": [text]}}),
    ("context", lambda text: {"context": {text: 1}}),
    ("context", lambda text: {"context": {"a": text}}),
    ("labels", lambda text: {"labels": {text: ""}}),
    ("labels", lambda text: {"labels": {"a": text}}),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("name", "fields"), STRINGS)
def test_strings_at_the_limit_pass_and_one_character_more_is_too_large(
    name: str, fields: Callable[[str], dict[str, Any]], codec: Codec
) -> None:
    read(request(**fields("ü" * 8)), codec, SMALL)
    error = refusal(packed(request(**fields("ü" * 9)), codec), SMALL)
    assert error.code == "too_large"
    assert error.message.startswith(f"{name}: ")


def test_labels_that_are_too_long_are_not_echoed() -> None:
    assert refusal(packed(request(labels={"a": "x" * 9})), SMALL).labels == {}
    assert refusal(packed(request(labels={f"k{n}": "" for n in range(17)})), SMALL).labels == {}


@pytest.mark.parametrize("codec", CODECS)
def test_a_value_at_the_limit_passes_and_one_byte_more_is_too_large(codec: Codec) -> None:
    value = packed(request(padding="x" * 100), codec)
    decode(value, key=None, limits=WireLimits(max_value_bytes=len(value)))
    error = refusal(value, WireLimits(max_value_bytes=len(value) - 1))
    assert error.code == "too_large"
    assert f"{len(value)} bytes" in error.message


def test_json_nested_to_the_limit_passes_and_one_deeper_is_refused() -> None:
    def nested(depth: int) -> bytes:
        return b'{"request_id":"r","history":[],"later":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    decode(nested(MAX_JSON_NESTING), key=None, limits=LIMITS)
    error = refusal(nested(MAX_JSON_NESTING + 1))
    assert (error.code, error.message) == ("bad_request", f"the value is nested deeper than {MAX_JSON_NESTING}")


def test_brackets_in_json_strings_are_no_nesting() -> None:
    text = '[{"' * 40 + "\\"
    assert read(request(labels={"a": text}), "json").labels == {"a": text}


def test_an_escaped_backslash_does_not_hide_nesting() -> None:
    value = b'{"request_id":"\\\\","history":[],"later":' + b"[" * 20 + b"]" * 20 + b"}"
    assert "nested deeper" in refusal(value).message


def test_what_a_record_says_does_not_swell_the_message() -> None:
    key = b"\xda\x10\x00" + b"k" * 4096
    error = refusal(b"\x82" + HEAD + b"\xa6labels\x82" + key + b"\xa1x" + key + b"\xa1x")
    assert error.message.startswith("labels.kkk")
    assert len(error.message) <= MAX_MESSAGE


def test_msgpack_nested_beyond_the_reader_is_refused() -> None:
    value = b"\x82\xa5later" + b"\x91" * 5_000 + b"\x01" + b"\xaarequest_id\xa1r"
    assert refusal(value).message == "the value is nested too deep"


HEAD = b"\xaarequest_id\xa1r"
MALFORMED: list[tuple[str, bytes, str]] = [
    ("no map", b"\x93\x01\x02\x03", "the value is not a map"),
    ("a number", b"\x01", "the value is not a map"),
    ("text", b"hello", "the value is not a map"),
    ("key a number", b"\x82" + HEAD + b"\x01\x01", "a key is not a string"),
    ("key binary", b"\x82" + HEAD + b"\xc4\x01v\x01", "a key is not a string"),
    ("inner key a number", b"\x82" + HEAD + b"\xa6labels\x81\x01\xa1x", "labels: a key is not a string"),
    ("key twice", b"\x83" + HEAD + b"\xa5top_k\x01\xa5top_k\x02", "top_k: given twice"),
    ("unknown key twice", b"\x83" + HEAD + b"\xa1x\x01\xa1x\x02", "x: given twice"),
    ("inner key twice", b"\x82" + HEAD + b"\xa6labels\x82\xa1a\xa1x\xa1a\xa1y", "labels.a: given twice"),
    ("extension", b"\x82" + HEAD + b"\xa5top_k\xd4\x05\x00", "top_k: extension types are not allowed"),
    ("empty extension", b"\x82" + HEAD + b"\xa5top_k\xc7\x00\x05", "top_k: extension types are not allowed"),
    ("timestamp", b"\x82" + HEAD + b"\xabdeadline_ms\xd6\xff\x00\x00\x00\x01", "deadline_ms: extension types"),
    ("extension in an array", b"\x82" + HEAD + b"\xa7history\x91\xd4\x05\x00", "history: not an array of plain values"),
    ("empty extension in an array", b"\x82" + HEAD + b"\xa7history\x91\xc7\x00\x05", "history: item ids"),
    ("array in an array", b"\x82" + HEAD + b"\xa7history\x91\x91\x01", "history: not an array of plain values"),
    ("array of 4 G declared", b"\x82" + HEAD + b"\xa7history\xdd\xff\xff\xff\xff", "the value is truncated"),
    ("array cut in an element", b"\x82" + HEAD + b"\xa7history\x92\xd3" + bytes(8), "the value is truncated"),
    ("reserved byte", b"\x82" + HEAD + b"\xa5top_k\xc1", "not valid msgpack"),
    ("broken text", b"\x82" + HEAD + b"\xa8template\xa2\xff\xfe", "not valid msgpack"),
    ("bytes after it", packed(request()) + b"\x00", "1 bytes follow the value"),
]


@pytest.mark.parametrize(("value", "message"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_malformed_msgpack_is_refused_with_the_reason(value: bytes, message: str) -> None:
    error = refusal(value)
    assert error.code == "bad_request"
    assert message in error.message
    assert error.codec == "msgpack"


MALFORMED_JSON: list[tuple[str, str]] = [
    ('{"request_id":"r","top_k":1,"top_k":2,"history":[]}', "top_k: given twice"),
    ('{"request_id":"r","labels":{"a":"x","a":"y"},"history":[]}', "a: given twice"),
    ('{"request_id":"r","history":[]', "not valid JSON"),
    ('{"request_id":"r","history":[]} x', "not valid JSON"),
    ('{"request_id":"r","history":[],"beam":{"width":1,"margin":NaN}}', "NaN is no JSON number"),
    ('{"request_id":"r","history":[],"beam":{"width":1,"margin":-Infinity}}', "-Infinity is no JSON number"),
    ('{"request_id":"\\ud800","history":[]}', "not valid JSON"),
    ('{"request_id":"r","history":[' + "9" * 5000 + "]}", "not valid JSON"),
    ("{", "not valid JSON"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED_JSON)
def test_malformed_json_is_refused_with_the_reason(text: str, message: str) -> None:
    error = refusal(text.encode())
    assert error.code == "bad_request"
    assert message in error.message
    assert error.codec == "json"


def test_json_in_another_encoding_is_refused() -> None:
    assert refusal('{"request_id":"ü","history":[]}'.encode("latin-1")).code == "bad_request"
    assert refusal('{"request_id":"r","history":[]}'.encode("utf-16-le")).code == "bad_request"


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_cut_anywhere_is_refused(codec: Codec) -> None:
    whole = request(labels={"a": "b"}, beam={"widths": [4, 5]}, context={"hour": 300}, history=[1, 2**40, 3])
    value = packed(whole, codec)
    decode(value, key=None, limits=LIMITS)
    for end in range(1, len(value)):
        assert refusal(value[:end]).code == "bad_request"


BOMBS: list[tuple[str, bytes]] = [
    ("array of 4 G declared", b"\x82" + HEAD + b"\xa7history\xdd\xff\xff\xff\xff"),
    ("map of 4 G declared", b"\xdf\xff\xff\xff\xff" + HEAD),
    ("inner map of 4 G declared", b"\x82" + HEAD + b"\xa6labels\xdf\xff\xff\xff\xff"),
    ("binary of 4 G declared", b"\x82" + HEAD + b"\xa7history\xc6\xff\xff\xff\xff"),
    ("text of 4 G declared", b"\x82" + HEAD + b"\xa8template\xdb\xff\xff\xff\xff"),
    ("extension of 4 G declared", b"\x82" + HEAD + b"\xa7history\xc9\xff\xff\xff\xff\x01"),
    ("nested arrays that each declare 4 G", b"\x82" + HEAD + b"\xa7history" + b"\xdd\xff\xff\xff\xff" * 2_000),
    ("nested maps that each declare 4 G", b"\x82" + HEAD + b"\xa7history" + b"\xdf\xff\xff\xff\xff\xa1a" * 2_000),
    ("unknown nested arrays", b"\x82" + HEAD + b"\xa5later" + b"\xdd\xff\xff\xff\xff" * 2_000),
    ("array that fills the value", b"\x82" + HEAD + b"\xa7history\xdd\x00\x0f\xff\x00" + b"\x90" * 1_048_320),
    ("unknown array that fills the value", b"\x82" + HEAD + b"\xa5later\xdd\x00\x0f\xff\x00" + b"\x90" * 1_048_320),
]


@pytest.mark.parametrize("value", [row[1] for row in BOMBS], ids=[row[0] for row in BOMBS])
def test_a_msgpack_bomb_costs_no_more_than_a_copy_of_the_value(value: bytes) -> None:
    assert allocated(value) < len(value) + 200_000


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' + "[" * 500_000,
        '{"a":"' + '\\"' * 500_000,
        '{"a":' + '{"a":' * 200_000,
        "{" + '"' * 1_000_000,
        '{"a":[' + "[]," * 300_000 + "[]]}",
    ],
    ids=["brackets", "escapes in an open string", "maps", "quotes", "many empty arrays"],
)
def test_a_json_bomb_costs_a_bounded_multiple_of_the_value(text: str) -> None:
    assert allocated(text.encode()) < 40 * len(text) + 200_000


def allocated(value: bytes) -> int:
    """Peak bytes that decoding ``value`` allocates, whether or not it is refused."""
    tracemalloc.start()
    try:
        decode(value, key=None, limits=LIMITS)
    except WireError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak
