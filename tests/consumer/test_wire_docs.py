"""The protocol's page names everything that the code speaks, and its examples are requests."""

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from consumer.wire import headers
from consumer.wire.codec import MAX_JSON_NESTING
from consumer.wire.fields import MAX_FIELDS, MAX_LABELS, Beam, Filter, RequestFields
from consumer.wire.outgoing import RequestOptions
from consumer.wire.reply import RecallReply, status_of
from consumer.wire.request import decode
from consumer.wire.settings import WireLimits
from engine.errors import ErrorCode
from tests.consumer.wire_examples import LIMITS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)

NAMES = {
    *RequestFields.__struct_fields__,
    *RequestOptions.__annotations__,
    *Beam.__struct_fields__,
    *Filter.__struct_fields__,
    *RecallReply.__struct_fields__,
    *WireLimits.model_fields,
    *CODES,
    *(status_of(code) for code in CODES),
    *(name for key, name in vars(headers).items() if key.isupper() and isinstance(name, str)),
}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_page_names(name: str) -> None:
    assert re.search(rf"[`\"]{re.escape(name)}[`\"]", PAGE)


def test_the_page_states_the_limits() -> None:
    for most in (LIMITS.max_value_bytes, LIMITS.max_history, LIMITS.max_tags, LIMITS.max_context, LIMITS.max_string):
        assert f"{most:,}" in PAGE
    assert LIMITS.max_history == LIMITS.max_tokens == LIMITS.max_exclude
    assert LIMITS.max_context == LIMITS.max_fields
    for fixed in (MAX_LABELS, MAX_FIELDS, MAX_JSON_NESTING):
        assert f"| {fixed}" in PAGE


def test_the_kcat_example_is_a_request() -> None:
    line = re.search(r"echo '(\{.*\})' \|", PAGE)
    assert line is not None
    wire = decode(line[1].encode(), key=b"u7", limits=LIMITS)
    assert (wire.user_id, wire.top_k, wire.codec) == ("u7", 5, "json")


def test_the_msgpack_example_is_a_request() -> None:
    line = re.search(r"^value = (msgpack\.packb\(.*\))$", PAGE, re.MULTILINE)
    assert line is not None
    scope: dict[str, Any] = {}
    exec(f"import msgpack, numpy\nvalue = {line[1]}", scope)  # noqa: S102  # the page's own line
    wire = decode(scope["value"], key=b"u7", limits=LIMITS)
    assert np.array_equal(wire.history, [1193, 661, 914])  # type: ignore[arg-type]  # int ids
    assert wire.top_k == 5
