"""Requests on the wire: what is read, what is refused and with which words, and what the defaults make of it."""

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.wire.errors import Codec
from consumer.wire.fields import WireRequest
from consumer.wire.outgoing import RequestOptions, encode_request
from consumer.wire.request import decode
from consumer.wire.resolve import Resolver
from consumer.wire.settings import RecallDefaults
from engine.errors import RequestError
from engine.request import BeamPolicy, TagFilter
from tests.consumer.wire_examples import CODECS, LIMITS, packed, read, refusal, request

int64 = st.integers(-(2**63), 2**63 - 1)
name = st.text(min_size=1, max_size=20)
ids = st.lists(int64, max_size=30) | st.lists(name, max_size=30)
count = st.integers(1, 2**31 - 1)
margin = st.floats(0, allow_infinity=False)
beam = st.one_of(
    st.fixed_dictionaries({"width": count}),
    st.fixed_dictionaries({"widths": st.lists(count, min_size=1, max_size=5), "margin": margin, "min_width": count}),
)
options = st.fixed_dictionaries(
    {},
    optional={
        "user_id": st.text(min_size=1, max_size=256),
        "template": name,
        "context": st.dictionaries(name, int64 | st.text(max_size=20), max_size=5),
        "top_k": count,
        "beam": beam,
        "score": st.sampled_from(["level", "vocab", "legal"]),
        "max_items_per_sid": count,
        "exclude": ids,
        "filter": st.fixed_dictionaries(
            {},
            optional={
                "any": st.lists(name, min_size=1, max_size=4),
                "all": st.lists(name, max_size=4),
                "none": st.lists(name, max_size=4),
            },
        ),
        "deadline_ms": st.integers(0, 2**63 - 1),
        "catalog": name,
        "return_sids": st.booleans(),
        "return_fields": st.lists(name, max_size=4),
        "labels": st.dictionaries(name, st.text(max_size=20), max_size=16),
    },
)
source = st.fixed_dictionaries({"history": ids, "exclude_history": st.booleans()}) | st.fixed_dictionaries(
    {"tokens": st.lists(st.integers(0, 2**31 - 1), max_size=30)}
)


def plain(content: Any) -> Any:
    return content.tolist() if isinstance(content, np.ndarray) else list(content)


@given(st.text(min_size=1, max_size=128), source, options, st.sampled_from(CODECS))
def test_what_a_client_writes_is_what_the_service_reads(
    request_id: str, asked: dict[str, Any], rest: dict[str, Any], codec: Codec
) -> None:
    fields: RequestOptions = {**asked, **rest}  # type: ignore[typeddict-item]  # drawn to fit
    wire = decode(encode_request(request_id, fields, codec), key=None, limits=LIMITS)
    assert wire.request_id == request_id
    assert wire.codec == codec
    for field, content in fields.items():
        got = getattr(wire, field)
        if field in ("history", "tokens", "exclude"):
            assert plain(got) == content
        elif field == "beam":
            assert isinstance(content, dict)
            assert {key: getattr(got, key) for key in content} == {
                key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
            }
        elif field == "filter":
            assert isinstance(content, dict)
            assert all(getattr(got, key) == tuple(tags) for key, tags in content.items())
        elif field == "return_fields":
            assert got == tuple(content)  # type: ignore[arg-type]  # a list
        else:
            assert got == content


def test_history_as_binary_as_array_and_as_base64_is_the_same() -> None:
    history = np.array([1, -1, 2**63 - 1, -(2**63)], np.int64)
    binary = history.astype("<i8").tobytes()
    for wire in (
        read(request(history=binary)),
        read(request(history=history.tolist())),
        read(request(history=history.tolist()), "json"),
        read(request(history=base64.b64encode(binary).decode()), "json"),
    ):
        assert isinstance(wire.history, np.ndarray)
        assert wire.history.dtype == np.int64
        assert wire.history.flags.writeable
        assert np.array_equal(wire.history, history)


def test_tokens_as_binary_as_array_and_as_base64_are_the_same() -> None:
    tokens = np.array([0, 7, 2**31 - 1], np.int32)
    binary = tokens.astype("<i4").tobytes()
    for wire in (
        read(request(history=None, tokens=binary)),
        read(request(history=None, tokens=tokens.tolist())),
        read(request(history=None, tokens=base64.b64encode(binary).decode()), "json"),
    ):
        assert wire.history is None
        assert wire.tokens is not None
        assert wire.tokens.dtype == np.int32
        assert np.array_equal(wire.tokens, tokens)


@pytest.mark.parametrize("history", [[], b""])
def test_an_empty_history_is_a_history(history: Any) -> None:
    wire = read(request(history=history))
    assert wire.history is not None
    assert len(wire.history) == 0


@pytest.mark.parametrize("codec", CODECS)
def test_unknown_fields_are_ignored_at_every_level(codec: Codec) -> None:
    later = {"later": {"a": [[{"b": [None, 1.5]}]]}}
    fields = request(beam={"width": 4, **later}, filter={"any": ["x"], **later}, **later)
    without = request(beam={"width": 4}, filter={"any": ["x"]})
    assert repr(read(fields, codec)) == repr(read(without, codec))


@pytest.mark.parametrize("codec", CODECS)
def test_null_is_the_same_as_absent(codec: Codec) -> None:
    value = packed({**request(), "top_k": None, "beam": None, "v": None, "tokens": None, "user_id": None}, codec)
    wire = decode(value, key=b"u", limits=LIMITS)
    assert (wire.top_k, wire.beam, wire.tokens, wire.user_id) == (None, None, None, "u")


@pytest.mark.parametrize(
    ("key", "user"),
    [
        (None, None),
        (b"", None),
        (b"u7", "u7"),
        ("ü".encode(), "ü"),
        (b"\xff\x00", None),
        (b"k" * 256, "k" * 256),
        (b"k" * 257, None),
    ],
)
def test_the_user_is_the_record_key_where_the_request_names_none(key: bytes | None, user: str | None) -> None:
    assert decode(packed(request()), key=key, limits=LIMITS).user_id == user
    assert decode(packed(request(user_id="named")), key=key, limits=LIMITS).user_id == "named"
    assert decode(packed(request(user_id="")), key=key, limits=LIMITS).user_id == user, "it names nobody"


def test_a_priority_is_read_and_is_five_where_none_is_given() -> None:
    assert decode(packed(request(priority=9)), key=None, limits=LIMITS).priority == 9
    assert decode(packed(request(priority=0)), key=None, limits=LIMITS).priority == 0
    assert decode(packed(request()), key=None, limits=LIMITS).priority == 5


BAD_FIELDS: list[tuple[str, dict[Any, Any], str]] = [
    ("no request_id", request(request_id=None), "request_id: required"),
    ("request_id empty", request(request_id=""), "request_id: expected str of length >= 1"),
    ("request_id no string", request(request_id=7), "request_id: expected str, got int"),
    ("request_id too long", request(request_id="r" * 129), "request_id: expected str of length <= 128"),
    ("user_id too long", request(user_id="u" * 257), "user_id: expected str of length <= 256"),
    ("user_id no string", request(user_id=7), "user_id: expected str, got int"),
    ("version no int", request(v="1"), "v: must be an int"),
    ("version a bool", request(v=True), "v: must be an int"),
    ("history mixed", request(history=[1, "a"]), "history: item ids must be all 64-bit ints or all strings"),
    ("history of bools", request(history=[True]), "history: item ids"),
    ("history of floats", request(history=[1.0]), "history: item ids"),
    ("history of nulls", request(history=[None]), "history: item ids"),
    ("history of empty arrays", request(history=[[]]), "history: item ids"),
    ("history of empty maps", request(history=[{}]), "history: item ids"),
    ("history over int64", request(history=[2**63]), "history: an int does not fit 64 bits"),
    ("history a number", request(history=5), "history: must be an array, got int"),
    ("history a map", request(history={"a": 1}), "history: must be an array, got dict"),
    ("tokens of strings", request(history=None, tokens=["a"]), "tokens: token ids must be ints"),
    ("tokens of bools", request(history=None, tokens=[False]), "tokens: token ids must be ints"),
    ("tokens over int32", request(history=None, tokens=[2**31]), "tokens: an int does not fit 32 bits"),
    ("history and tokens", request(tokens=[1]), "history and tokens: only one"),
    ("neither", request(history=None), "history: not given"),
    ("append without a user", request(history=None, append=[1]), "history: not given, and neither user_id nor"),
    ("append and history", request(append=[1]), "history and append: only one may be given"),
    ("event without a user", {"type": "event", "items": [1]}, "user_id: not given"),
    ("event without items", {"type": "event", "user_id": "u"}, "items: required"),
    ("event of mixed items", {"type": "event", "user_id": "u", "items": [1, "a"]}, "items: item ids must be all"),
    ("event with a bad time", {"type": "event", "user_id": "u", "items": [1], "ts": -1}, "ts: expected int >= 0"),
    ("cancel of nothing", {"type": "cancel", "user_id": "u"}, "request_id: required"),
    ("forget nobody", {"type": "forget"}, "user_id: not given"),
    ("unknown type", request(type="x"), "type: not supported"),
    ("type no string", request(type=1), "type: expected str, got int"),
    ("priority out of range", request(priority=10), "priority: expected int <= 9"),
    ("explain", request(explain=True), "explain: not supported"),
    ("exclude_history with tokens", request(history=None, tokens=[1], exclude_history=True), "exclude_history: needs"),
    ("exclude_history no bool", request(exclude_history=1), "exclude_history: expected bool, got int"),
    ("exclude mixed", request(exclude=["a", 1]), "exclude: item ids"),
    ("exclude a number", request(exclude=5), "exclude: must be an array, got int"),
    ("top_k zero", request(top_k=0), "top_k: expected int >= 1"),
    ("top_k a bool", request(top_k=True), "top_k: expected int, got bool"),
    ("top_k a float", request(top_k=5.0), "top_k: expected int, got float"),
    ("top_k over int32", request(top_k=2**31), "top_k: expected int <="),
    ("top_k an array", request(top_k=[1]), "top_k: an array or a map is not allowed here"),
    ("width zero", request(beam={"width": 0}), "beam.width: expected int >= 1"),
    ("width negative", request(beam={"width": -1}), "beam.width: expected int >= 1"),
    ("width a bool", request(beam={"width": True}), "beam.width: expected int, got bool"),
    ("width and widths", request(beam={"width": 4, "widths": [4]}), "beam: give either width or widths"),
    ("neither width", request(beam={}), "beam: give either width or widths"),
    ("widths empty", request(beam={"widths": []}), "beam.widths: expected array of length >= 1"),
    ("widths with zero", request(beam={"widths": [4, 0]}), "beam.widths[1]: expected int >= 1"),
    ("margin negative", request(beam={"width": 4, "margin": -0.1}), "beam.margin: expected float >= 0.0"),
    ("min_width alone", request(beam={"width": 4, "min_width": 2}), "beam: min_width needs margin"),
    ("beam a number", request(beam=4), "beam: expected object, got int"),
    ("score unknown", request(score="best"), "score: invalid enum value 'best'"),
    ("max_items_per_sid zero", request(max_items_per_sid=0), "max_items_per_sid: expected int >= 1"),
    ("filter any empty", request(filter={"any": []}), "filter.any: expected array of length >= 1"),
    ("filter of numbers", request(filter={"all": [1]}), "filter.all[0]: expected str, got int"),
    ("filter tag empty", request(filter={"none": [""]}), "filter.none[0]: expected str of length >= 1"),
    ("filter a list", request(filter=["a"]), "filter: expected object, got array"),
    ("deadline negative", request(deadline_ms=-1), "deadline_ms: expected int >= 0"),
    ("deadline a float", request(deadline_ms=1.5), "deadline_ms: expected int, got float"),
    ("catalog empty", request(catalog=""), "catalog: expected str of length >= 1"),
    ("context of floats", request(context={"hour": 1.5}), "context[...]: expected int | str, got float"),
    ("context of bools", request(context={"hour": True}), "context[...]: expected int | str, got bool"),
    ("context of arrays", request(context={"hour": [1]}), "context.hour: an array or a map is not allowed here"),
    ("context over int64", request(context={"hour": 2**63}), "context[...]: expected int <="),
    ("labels of numbers", request(labels={"a": 1}), "labels[...]: expected str, got int"),
    ("labels a list", request(labels=["a"]), "labels: expected object, got array"),
    ("return_fields a string", request(return_fields="title"), "return_fields: expected array, got str"),
    ("return_sids no bool", request(return_sids="yes"), "return_sids: expected bool, got str"),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("fields", "message"), [row[1:] for row in BAD_FIELDS], ids=[row[0] for row in BAD_FIELDS])
def test_a_bad_field_is_refused_and_named(fields: dict[Any, Any], message: str, codec: Codec) -> None:
    error = refusal(packed(fields, codec))
    assert error.code == "bad_request"
    assert message in error.message
    assert error.codec == codec


def test_a_margin_that_is_no_number_is_refused() -> None:
    for margin, message in (
        (float("nan"), "beam.margin: expected float"),
        (float("inf"), "beam: margin must be finite"),
    ):
        error = refusal(packed(request(beam={"width": 4, "margin": margin})))
        assert (error.code, message in error.message) == ("bad_request", True)
    assert refusal(b'{"request_id":"r","history":[],"beam":{"width":4,"margin":1e999}}').code == "bad_request"


@pytest.mark.parametrize(("field", "step"), [("history", 8), ("tokens", 4)])
def test_binary_of_a_broken_length_is_refused(field: str, step: int) -> None:
    for size in (1, step - 1, step + 1):
        binary = bytes(size)
        for value in (
            packed({"request_id": "r", field: binary}),
            packed({"request_id": "r", field: base64.b64encode(binary).decode()}, "json"),
        ):
            error = refusal(value)
            assert error.code == "bad_request"
            assert f"{field}: {size} bytes are no multiple of {step}" in error.message


def test_exclude_is_no_binary_field() -> None:
    assert "exclude: must be an array" in refusal(packed(request(exclude=bytes(8)))).message
    assert "exclude: must be an array" in refusal(packed(request(exclude="AAAAAAAAAAA="), "json")).message


def test_text_in_the_place_of_binary_is_base64_only_in_json() -> None:
    text = base64.b64encode(bytes(8)).decode()
    assert "history: must be an array, got str" in refusal(packed(request(history=text))).message
    assert "history: the text is not base64" in refusal(packed(request(history="AAAA!AAAAAAA="), "json")).message


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", [0, 2, -1, 2**70])
def test_another_version_is_said_to_be_unsupported(version: int, codec: Codec) -> None:
    if codec == "msgpack" and version > 2**64:
        return
    error = refusal(packed({"v": version, "request_id": "r", "labels": {"a": "b"}, "history": {"new": "shape"}}, codec))
    assert error.code == "unsupported_version"
    assert (error.request_id, error.labels) == ("r", {"a": "b"})


def test_another_version_is_recognised_even_where_the_rest_cannot_be_read() -> None:
    value = packed({"v": 2, "request_id": "r", "top_k": [1, 2, 3]})
    assert refusal(value).code == "unsupported_version"
    assert refusal(value[:-1]).code == "unsupported_version"


@pytest.mark.parametrize("codec", CODECS)
def test_an_error_can_be_addressed_with_what_could_be_read(codec: Codec) -> None:
    error = refusal(packed(request(user_id="u", labels={"arm": "b"}, top_k=0), codec), key=b"other")
    assert (error.request_id, error.user_id, error.labels, error.codec) == ("r", "u", {"arm": "b"}, codec)
    error = refusal(packed(request(request_id=5, user_id=6, labels={"arm": 7}), codec), key=b"key")
    assert (error.request_id, error.user_id, error.labels, error.codec) == (None, "key", {}, codec)


def test_a_truncated_record_is_addressed_with_what_came_before_the_break() -> None:
    value = packed({"request_id": "r", "user_id": "u", "labels": {"a": "b"}, "history": bytes(800)})
    error = refusal(value[:-1], key=b"key")
    assert (error.code, error.request_id, error.user_id, error.labels) == ("bad_request", "r", "u", {"a": "b"})


@pytest.mark.parametrize("value", [None, b""])
def test_a_record_without_a_value_is_refused(value: bytes | None) -> None:
    error = refusal(value, key=b"u")
    assert (error.code, error.message, error.user_id) == ("bad_request", "the record has no value", "u")


RESOLVER = Resolver(RecallDefaults(top_k=20, width=50, margin=3.0, min_width=2, score="vocab"), 3)


def resolved(**fields: Any) -> tuple[BeamPolicy, int]:
    request_ = RESOLVER.resolve(read(request(**fields)))
    return request_.beam, request_.top_k


def test_the_default_beam_is_raised_to_top_k_and_the_default_top_k_lowered_to_the_beam() -> None:
    assert resolved() == (BeamPolicy((50, 50, 50), 3.0, 2), 20)
    assert resolved(top_k=60) == (BeamPolicy((60, 60, 60), 3.0, 2), 60)
    assert resolved(beam={"width": 10}) == (BeamPolicy((10, 10, 10)), 10)
    assert resolved(beam={"width": 30}) == (BeamPolicy((30, 30, 30)), 20)
    assert resolved(beam={"width": 10}, top_k=40) == (BeamPolicy((10, 10, 10)), 40)
    assert resolved(beam={"widths": [8, 16, 32], "margin": 0.0, "min_width": 4}) == (
        BeamPolicy((8, 16, 32), 0.0, 4),
        20,
    )


@pytest.mark.parametrize("widths", [[4, 4], [4, 4, 4, 4]])
def test_widths_of_the_wrong_length_are_refused(widths: list[int]) -> None:
    with pytest.raises(RequestError, match=rf"beam.widths: {len(widths)} given, the model has 3 levels") as caught:
        resolved(beam={"widths": widths})
    assert caught.value.code == "bad_request"


def test_every_field_reaches_the_engine() -> None:
    wire = read(
        request(
            history=["a", "b"],
            top_k=5,
            template="home",
            context={"hour": 3, "region": "eu"},
            score="legal",
            max_items_per_sid=2,
            exclude=["c"],
            exclude_history=True,
            filter={"any": ["x"], "none": ["y", "z"]},
            catalog="v7",
            return_sids=True,
            return_fields=["title"],
        )
    )
    got = RESOLVER.resolve(wire)
    assert (got.history, got.tokens, got.exclude, got.exclude_history) == (["a", "b"], None, ["c"], True)
    assert (got.template, got.context, got.score, got.max_items_per_sid) == (
        "home",
        {"hour": 3, "region": "eu"},
        "legal",
        2,
    )
    assert (got.filter, got.catalog) == (TagFilter(any=("x",), none=("y", "z")), "v7")
    assert (got.return_sids, got.return_fields) == (True, ("title",))
    assert RESOLVER.resolve(read(request())).score == "vocab"


def test_without_exclude_nothing_is_excluded() -> None:
    wire: WireRequest = read(request())
    assert len(wire.exclude) == 0


def test_defaults_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="deadline_ms must not be above max_deadline_ms"):
        RecallDefaults(deadline_ms=10, max_deadline_ms=9)
