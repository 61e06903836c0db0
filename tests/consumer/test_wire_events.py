"""Events, cancels and forgets on the wire."""

import numpy as np
import pytest

from consumer.wire.errors import Codec, WireError
from consumer.wire.events import WireEvent
from consumer.wire.fields import WireRequest
from consumer.wire.outgoing import Ids, encode_cancel, encode_event, encode_forget, encode_request
from consumer.wire.request import RequestDecoder, decode
from consumer.wire.settings import WireLimits
from tests.consumer.wire_examples import LIMITS

READ = RequestDecoder(LIMITS).decode


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize("items", [[3, 1, 2], ["a", "b"], []], ids=["ints", "strings", "none"])
def test_an_event_is_read_as_it_was_written(codec: Codec, items: Ids) -> None:
    event = READ(encode_event("u", items, ts=1_700_000_000_000, codec=codec), b"key")
    assert isinstance(event, WireEvent)
    assert (event.type, event.user_id, list(event.items)) == ("event", "u", list(items))
    assert (event.request_id, event.cancels) == (None, None)


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_a_cancel_and_a_forget_name_their_user(codec: Codec) -> None:
    cancel, forget = READ(encode_cancel("u", "r-1", codec), None), READ(encode_forget("u", codec), None)
    assert isinstance(cancel, WireEvent)
    assert isinstance(forget, WireEvent)
    assert (cancel.type, cancel.user_id, cancel.cancels) == ("cancel", "u", "r-1")
    assert (forget.type, forget.user_id, forget.cancels) == ("forget", "u", None)


def test_the_user_of_an_event_is_the_key_where_it_names_none() -> None:
    event = READ(b'{"type": "event", "items": [1]}', b"key")
    assert isinstance(event, WireEvent)
    assert event.user_id == "key"


def test_a_malformed_event_is_told_from_a_request_and_addresses_nobody() -> None:
    for value in (b'{"type": "cancel", "request_id": "r", "ts": "x"}', b'{"type": "event", "items": 1}'):
        with pytest.raises(WireError) as caught:
            READ(value, b"key")
        assert (caught.value.event, caught.value.request_id) == (True, None)
    with pytest.raises(WireError) as caught:
        READ(b'{"request_id": "r", "top_k": 0}', b"key")
    assert (caught.value.event, caught.value.request_id) == (False, "r")


def test_an_event_is_held_to_the_limits_of_a_history() -> None:
    for codec in ("msgpack", "json"):
        with pytest.raises(WireError) as caught:
            RequestDecoder(WireLimits(max_history=2)).decode(encode_event("u", [1, 2, 3], codec=codec), None)
        assert caught.value.code == "too_large"


def test_where_a_request_is_wanted_an_event_is_none() -> None:
    with pytest.raises(WireError, match="type: event"):
        decode(encode_event("u", [1]), key=None, limits=LIMITS)


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_a_request_may_append_or_bring_nothing(codec: Codec) -> None:
    appended = READ(encode_request("r", {"append": [7, 8]}, codec), b"u")
    bare = READ(encode_request("r", {}, codec), b"u")
    assert isinstance(appended, WireRequest)
    assert isinstance(bare, WireRequest)
    assert np.array_equal(appended.append, [7, 8])  # type: ignore[arg-type]  # int ids
    assert (appended.user_id, appended.history, bare.user_id, bare.append) == ("u", None, "u", None)
