"""Whatever the bytes: a request or a WireError, in bounded memory, and an error reply that can be written."""

import json
import random
import tracemalloc
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from consumer.wire.errors import Addressee, WireError
from consumer.wire.fields import RequestFields, WireRequest
from consumer.wire.outgoing import encode_cancel, encode_event, encode_request
from consumer.wire.quick import QuickReader
from consumer.wire.reply import decode_reply, encode_error
from consumer.wire.request import decode, read_carefully
from consumer.wire.resolve import Resolver
from consumer.wire.settings import RecallDefaults
from engine.errors import RequestError
from tests.consumer.wire_examples import CODECS, LIMITS, packed, request

RESOLVER = Resolver(RecallDefaults(), 3)
QUICK = QuickReader(LIMITS)
RECORDS = 10_000
MOST_BYTES = 1_000_000
"""No mutated record here is longer than a few kilobytes, so this is far above what an honest decoder needs."""

INTERESTING = bytes([0x00, 0x7B, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xC0, 0xC1, 0xC4, 0xC6, 0xC7, 0xC9, 0xCB, 0xCF, 0xD3])
INTERESTING += bytes([0xD4, 0xD6, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xFF]) + b'"\\[]{}:,-.eE019tfn'

SEEDS = [
    packed(fields, codec)
    for codec in CODECS
    for fields in (
        request(),
        request(history=list(range(0, 100_000, 997)), exclude=[5, 6], exclude_history=True),
        request(history=["a", "b", "ü"], exclude=["c"], labels={"arm": "b", "channel": "push"}),
        request(history=None, tokens=[1, 2, 151_669], user_id="u", top_k=50, v=1),
        request(beam={"widths": [8, 16, 32], "margin": 2.5, "min_width": 4}, score="legal", max_items_per_sid=3),
        request(filter={"any": ["x"], "all": ["y", "z"], "none": []}, context={"hour": 3, "region": "eu"}),
        request(catalog="v1", template="home", return_sids=True, return_fields=["title"], deadline_ms=2**41),
        request(history=None, append=[4, 5], user_id="u", exclude_history=True),
        request(history=None, user_id="u"),
        request(later={"a": [[1, {"b": None}]]}, priority=7, explain=False, type="recall"),
    )
] + [packed(request(history=np.arange(50, dtype="<i8").tobytes()))]
SEEDS += [encode_event("u", [1, 2, 3], ts=5), encode_event("u", ["a", "b"], codec="json"), encode_cancel("u", "r")]
SEEDS += [msgspec.json.encode(json.loads(value)) for value in SEEDS if value.startswith(b"{")]
SEEDS += [encode_request("r", {"history": [1, 2], "labels": {"ü": '"'}}, "json")]


def mutated(rng: random.Random) -> bytes:
    value = bytearray(rng.choice(SEEDS))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(value) + 1)
        match rng.randrange(7):
            case 0:
                value[at : at + 1] = rng.randbytes(1)
            case 1:
                value[at : at + 1] = bytes([rng.choice(INTERESTING)])
            case 2:
                value[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                del value[at : at + rng.randrange(1, 9)]
            case 4:
                value[at:at] = value[at : at + rng.randrange(1, 40)]
            case 5:
                other = rng.choice(SEEDS)
                value[at:] = other[rng.randrange(len(other)) :]
            case _:
                value[at : at + 5] = bytes([rng.choice(b"\xc6\xdb\xdd\xdf\xc9")]) + rng.randbytes(4)
    return bytes(value)


def outcome(value: bytes) -> str:
    """Decode, resolve and answer; anything but the protocol's own errors fails the test."""
    addressee, failure = received(value)
    if failure is None:
        return "ok"
    reply = decode_reply(encode_error(addressee, failure.code, failure.message))
    assert (reply.request_id, reply.user_id, reply.labels) == (
        addressee.request_id,
        addressee.user_id,
        addressee.labels,
    )
    return failure.code


def received(value: bytes) -> tuple[Addressee, RequestError | None]:
    try:
        wire = decode(value, key=b"key", limits=LIMITS)
    except WireError as error:
        return error, error
    assert isinstance(wire, WireRequest)
    try:
        RESOLVER.resolve(wire)
    except RequestError as error:
        return wire, error
    return wire, None


def test_ten_thousand_mutated_records_give_a_request_or_a_wire_error_in_bounded_memory() -> None:
    rng = random.Random(20_240_607)
    outcomes: dict[str, int] = {}
    tracemalloc.start()
    try:
        for _ in range(RECORDS):
            value = mutated(rng)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            code = outcome(value)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < MOST_BYTES, value
            outcomes[code] = outcomes.get(code, 0) + 1
    finally:
        tracemalloc.stop()
    assert sum(outcomes.values()) == RECORDS
    assert outcomes.keys() >= {"ok", "bad_request", "unsupported_version"}, outcomes
    assert outcomes["ok"] > RECORDS // 50, "the mutations still reach behind the reader"


def quick_and_careful_agree(value: bytes) -> bool:
    """Whether the quick reader takes ``value``; what it then gives must be what the careful one gives."""
    quick = QUICK.read(value) if value else None
    event = QUICK.read_event(value, "key") if value and quick is None else None
    if event is not None:
        assert repr(event) == repr(read_carefully(value, b"key", LIMITS)), value
        return True
    if quick is None:
        return False
    careful = read_carefully(value, b"key", LIMITS)
    assert isinstance(careful, WireRequest)
    if quick.user_id is None:  # the decoder's to fill in
        force_setattr(quick, "user_id", "key")
    assert repr(quick) == repr(careful), value
    assert (quick.codec, type(quick.history), type(quick.exclude)) == (
        careful.codec,
        type(careful.history),
        type(careful.exclude),
    )
    return True


ENTRIES = [
    ("request_id", "r"),
    ("v", 1),
    ("user_id", "u"),
    ("top_k", 5),
    ("deadline_ms", 9),
    ("template", "home"),
    ("catalog", "v1"),
    ("history", bytes(16)),
    ("append", bytes(8)),
    ("labels", {"arm": "b"}),
    ("exclude_history", False),
    ("priority", 5),
]


@given(st.lists(st.sampled_from([*ENTRIES, *((name, None) for name, _ in ENTRIES)]), max_size=9))
def test_a_key_that_stands_twice_is_never_taken_whatever_else_the_map_holds(entries: list[tuple[str, Any]]) -> None:
    entries = [("request_id", "r"), *entries]
    value = bytes([0x80 + len(entries)]) + b"".join(msgpack.packb(part) for entry in entries for part in entry)
    taken = quick_and_careful_agree(value)
    assert not (taken and len(dict(entries)) < len(entries))


def test_the_quick_reader_takes_nothing_that_the_careful_one_would_not_take_alike() -> None:
    rng = random.Random(20_251_129)
    taken = sum(quick_and_careful_agree(mutated(rng)) for _ in range(RECORDS))
    assert taken > RECORDS // 50


@pytest.mark.parametrize("value", SEEDS, ids=range(len(SEEDS)))
def test_the_quick_reader_takes_what_clients_write(value: bytes) -> None:
    rare = b"cancel" in value or (b"event" in value and value[:1] == b"{")
    assert quick_and_careful_agree(value) == (b"later" not in value and b'", ' not in value and not rare)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"{" + tail))
@settings(max_examples=200)
def test_any_bytes_give_a_request_or_a_wire_error(value: bytes) -> None:
    outcome(value)


NAMES = st.sampled_from([*RequestFields.__struct_fields__, "v", "history", "append", "tokens", "exclude", "later"])
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars | st.binary(max_size=16),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["width", "widths", "margin", "any", "all", "none", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, anything, max_size=8))
@settings(max_examples=300)
def test_any_map_of_the_protocols_names_gives_a_request_or_a_wire_error(fields: dict[str, Any]) -> None:
    value = msgpack.packb({**request(), **fields})
    outcome(value)
    quick_and_careful_agree(value)


@given(st.dictionaries(NAMES, anything.filter(lambda content: "bytes" not in repr(type(content))), max_size=8))
@settings(max_examples=200)
def test_the_same_in_json(fields: dict[str, Any]) -> None:
    try:
        value = packed({**request(), **fields}, "json")
    except TypeError:  # bytes somewhere inside
        return
    outcome(value)
