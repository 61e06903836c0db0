"""The request record: bytes to a validated ``WireRequest``."""

import re
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from consumer.wire.arrays import binary_of, read_item_ids, read_tokens
from consumer.wire.codec import Shape, codec_of, read_map
from consumer.wire.errors import Codec, WireError
from consumer.wire.events import EVENT_TYPES, EventFields, WireEvent, to_event
from consumer.wire.fields import (
    MAX_FIELDS,
    MAX_LABELS,
    MAX_REQUEST_ID,
    MAX_USER_ID,
    MAX_WIDTHS,
    VERSION,
    Beam,
    Filter,
    JsonRequest,
    RequestFields,
    WireRequest,
)
from consumer.wire.quick import HEAD, PACKED_EVENT, QuickReader
from consumer.wire.settings import WireLimits
from engine.errors import RequestError

MAX_MESSAGE = 256


class RequestDecoder:
    """Reads and checks records within ``limits``."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._quick = QuickReader(limits)

    def decode(self, value: bytes | None, key: bytes | None) -> WireRequest | WireEvent:
        """One record. Raises ``WireError`` and nothing else, whatever the bytes."""
        if not value:
            return read_carefully(value, key, self._limits)
        quick = self._quick
        if value.find(PACKED_EVENT, 0, HEAD) >= 0 and (event := quick.read_event(value, user_of(key))):
            return event
        wire = quick.read(value)
        if wire is None:
            return quick.read_event(value, user_of(key)) or read_carefully(value, key, self._limits)
        if not wire.user_id:
            force_setattr(wire, "user_id", user_of(key))
            if wire.user_id is None and wire.history is None and wire.tokens is None:
                return read_carefully(value, key, self._limits)
        return wire


def decode(value: bytes | None, *, key: bytes | None, limits: WireLimits) -> WireRequest:
    """Read and check one request. Raises ``WireError`` and nothing else, whatever the bytes."""
    wire = _decoder(limits).decode(value, key)
    if isinstance(wire, WireEvent):
        raise WireError("bad_request", f"type: {wire.type}, where a request is wanted", event=True)
    return wire


def decode_whole(value: bytes, limits: WireLimits) -> WireRequest:
    """Read and check a request that nobody holds a history for. Raises ``WireError``."""
    wire = decode(value, key=None, limits=limits)
    if wire.history is None and wire.tokens is None:
        raise WireError("bad_request", "history: not given, and there is none that is held")
    return wire


def read_carefully(value: bytes | None, key: bytes | None, limits: WireLimits) -> WireRequest | WireEvent:
    """Field by field, so that an error names the place. Raises ``WireError`` and nothing else, whatever the bytes."""
    fields: dict[str, Any] = {}
    try:
        _read(value, limits, fields)
        read = _validate_event if _is_event(fields) else _validate
        return read(fields, codec_of(value or b""), key, limits)
    except RequestError as error:
        event = _is_event(fields)
        request_id, user_id, labels = fields.get("request_id"), fields.get("user_id"), fields.get("labels")
        raise WireError(
            error.code,
            error.message[:MAX_MESSAGE],
            request_id=request_id
            if isinstance(request_id, str) and len(request_id) <= MAX_REQUEST_ID and not event
            else None,
            user_id=user_id if isinstance(user_id, str) and 0 < len(user_id) <= MAX_USER_ID else user_of(key),
            labels=labels if _are_labels(labels, limits) else None,
            codec=codec_of(value or b""),
            event=event,
        ) from None


def readable_fields(value: bytes | None, limits: WireLimits) -> dict[str, Any]:
    """Known fields of a record that is no request, as far as they can be read. Never raises, whatever the bytes."""
    fields: dict[str, Any] = {}
    with suppress(RequestError):
        _read(value, limits, fields)
    return fields


def user_of(key: bytes | None) -> str | None:
    """The user that a record's key names; a key that is no UTF-8 text of 1 to 256 characters names none."""
    if not key:
        return None
    try:
        user = key.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return user if len(user) <= MAX_USER_ID else None


def _bad(message: str) -> RequestError:
    return RequestError("bad_request", message)


@lru_cache(maxsize=8)
def _decoder(limits: WireLimits) -> RequestDecoder:
    return RequestDecoder(limits)


@lru_cache(maxsize=8)
def _shape(limits: WireLimits) -> Shape:
    tags = {f"filter.{part}": limits.max_tags for part in ("any", "all", "none")}
    return {
        **dict.fromkeys(RequestFields.__struct_fields__, 0),
        **{"": MAX_FIELDS, "v": 0, "ts": 0},
        **dict.fromkeys(("append", "history", "items"), limits.max_history),
        **{"tokens": limits.max_tokens, "exclude": limits.max_exclude, "return_fields": limits.max_fields},
        **{"context": limits.max_context, "context.*": 0, "labels": MAX_LABELS, "labels.*": 0},
        **{"beam": MAX_FIELDS, **{f"beam.{name}": 0 for name in Beam.__struct_fields__}, "beam.widths": MAX_WIDTHS},
        **{"filter": MAX_FIELDS, **tags},
    }


def _read(value: bytes | None, limits: WireLimits, fields: dict[str, Any]) -> None:
    if not value:
        raise _bad("the record has no value")
    if len(value) > limits.max_value_bytes:
        raise RequestError("too_large", f"the value has {len(value)} bytes, at most {limits.max_value_bytes} pass")
    try:
        read_map(value, _shape(limits), fields)
    finally:  # another version may well be what made the rest unreadable
        _check_version(fields.get("v"))


def _check_version(version: object) -> None:
    if version is None or (type(version) is int and version == VERSION):
        return
    if type(version) is not int:
        raise _bad("v: must be an int")
    raise RequestError("unsupported_version", f"v: version {version} is not supported, this service speaks {VERSION}")


def _validate(fields: dict[str, Any], codec: Codec, key: bytes | None, limits: WireLimits) -> WireRequest:
    given = {name: content for name, content in fields.items() if content is not None}
    try:
        checked = msgspec.convert(given, RequestFields)
    except msgspec.ValidationError as error:
        raise _bad(_explain(str(error))) from None
    _refuse_later_parts(checked)
    _check_strings(checked, limits.max_string)
    tokens = given.get("tokens")
    contexts = [name for name in ("history", "append", "tokens") if name in given]
    if len(contexts) > 1:
        raise _bad(f"{' and '.join(contexts)}: only one may be given")
    if checked.exclude_history and tokens is not None:
        raise _bad("exclude_history: needs history")
    values = msgspec.structs.asdict(checked) | {"v": fields.get("v")}
    if not checked.user_id:
        values["user_id"] = user_of(key)
    if values["user_id"] is None and contexts not in (["history"], ["tokens"]):
        raise _bad("history: not given, and neither user_id nor the record's key says whose it is")
    for name in ("history", "append"):
        if name in given:
            ids = binary_of(name, given[name], codec)
            values[name] = read_item_ids(name, ids, limits.max_history, limits.max_string)
    if tokens is not None:
        values["tokens"] = read_tokens("tokens", binary_of("tokens", tokens, codec), limits.max_tokens)
    if "exclude" in given:
        if isinstance(given["exclude"], bytes):
            raise _bad("exclude: must be an array, got bytes")
        values["exclude"] = read_item_ids("exclude", given["exclude"], limits.max_exclude, limits.max_string)
    return (JsonRequest if codec == "json" else WireRequest)(**values)


def _is_event(fields: dict[str, Any]) -> bool:
    kind = fields.get("type")
    return isinstance(kind, str) and kind in EVENT_TYPES


def _validate_event(fields: dict[str, Any], codec: Codec, key: bytes | None, limits: WireLimits) -> WireEvent:
    given = {name: content for name, content in fields.items() if content is not None}
    try:
        checked = msgspec.convert(given, EventFields)
    except msgspec.ValidationError as error:
        raise _bad(_explain(str(error))) from None
    return to_event(checked, given.get("items"), user_of(key), codec, limits)


def _refuse_later_parts(checked: RequestFields) -> None:
    unsupported = {
        "type": checked.type != "recall",
        "explain": checked.explain,
    }
    for name, used in unsupported.items():
        if used:
            raise _bad(f"{name}: not supported by this version of the service")


def _check_strings(checked: RequestFields, most: int) -> None:
    tags = checked.filter or Filter()
    for name, strings in (
        ("template", (checked.template,)),
        ("catalog", (checked.catalog,)),
        ("return_fields", checked.return_fields),
        ("filter.any", tags.any or ()),
        ("filter.all", tags.all),
        ("filter.none", tags.none),
        ("context", (*checked.context.keys(), *checked.context.values())),
        ("labels", (*checked.labels.keys(), *checked.labels.values())),
    ):
        if any(isinstance(text, str) and len(text) > most for text in strings):
            raise RequestError("too_large", f"{name}: a string is longer than {most} characters")


def _are_labels(labels: object, limits: WireLimits) -> bool:
    return (
        isinstance(labels, dict)
        and len(labels) <= MAX_LABELS
        and all(isinstance(text, str) and len(text) <= limits.max_string for pair in labels.items() for text in pair)
    )


_MISSING = re.compile(r"Object missing required field `(.*)`")


def _explain(report: str) -> str:
    """msgspec's ``Expected `int | null`, got `str` - at `$.top_k` `` as ``top_k: expected int, got str``."""
    if missing := _MISSING.match(report):
        return f"{missing[1]}: required"
    what, _, where = report.replace(" | null", "").replace("`", "").partition(" - at ")
    place = where.removeprefix("key in ").removeprefix("$.") or "the value"
    return f"{place}: {what[:1].lower()}{what[1:]}"
