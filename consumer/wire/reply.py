"""The reply record: written by the service in the codec of its request, read by clients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgpack
import msgspec
import numpy as np
from numpy.typing import NDArray

from consumer.wire.codec import codec_of
from consumer.wire.errors import Addressee, Codec, ReplyError
from consumer.wire.fields import VERSION
from engine.errors import ErrorCode
from engine.request import NO_ITEMS, ItemIds, RecallResult

Status = Literal["ok", "expired", "rejected", "error"]

_STATUS: Mapping[ErrorCode, Status] = {"expired": "expired", "cancelled": "expired", "overloaded": "rejected"}


def status_of(code: ErrorCode) -> Status:
    """``expired`` for too late and cancelled, ``rejected`` for overload, else ``error``."""
    return _STATUS.get(code, "error")


class _Timing(msgspec.Struct, frozen=True):
    queue: float
    prefill: float
    decode: float
    total: float
    age: float | msgspec.UnsetType = msgspec.UNSET


class _Fault(msgspec.Struct, frozen=True):
    code: ErrorCode
    message: str


class _ErrorFields(msgspec.Struct, frozen=True):
    """A reply without items, in the order of the wire."""

    v: int
    request_id: str | None
    user_id: str | None
    labels: Mapping[str, str]
    status: Status
    timing_ms: _Timing
    error: _Fault


class _OkFields(msgspec.Struct, frozen=True):
    """A reply with items, in the order of the wire; what is unset does not go there."""

    v: int
    request_id: str | None
    user_id: str | None
    labels: Mapping[str, str]
    status: Status
    items: list[int] | list[str]
    scores: bytes | list[float]
    model: str
    catalog: str
    beam_widths: tuple[int, ...]
    exhausted: bool
    degraded: Sequence[str]
    truncated: bool
    context_tokens: int
    reused_tokens: int
    unknown_items: int
    timing_ms: _Timing
    sids: Any
    fields: dict[str, list[object]] | msgspec.UnsetType


_PACK = msgspec.msgpack.Encoder().encode
_ENCODE: Mapping[Codec, Callable[[object], bytes]] = {"msgpack": _PACK, "json": msgspec.json.Encoder().encode}
_FLOAT32, _INT32 = np.dtype("<f4"), np.dtype("<i4")


def encode_reply(
    to: Addressee,
    result: RecallResult,
    queue_ms: float,
    total_ms: float,
    degraded: Sequence[str] = (),
    age_ms: float | None = None,
) -> bytes:
    """The answer with items. ``queue_ms``: record read to batch start; ``total_ms``: record read to here.

    ``degraded``: what was given up for it; ``age_ms``: of an answer that was made for an earlier request.
    """
    codec = to.codec
    return _ENCODE[codec](
        _OkFields(
            VERSION,
            to.request_id,
            to.user_id,
            to.labels,
            "ok",
            _plain(result.items),
            _numbers(result.scores, _FLOAT32, codec),
            result.model,
            result.catalog,
            result.beam_widths,
            result.exhausted,
            degraded,
            result.truncated,
            result.context_tokens,
            result.reused_tokens,
            result.unknown_items,
            _Timing(
                queue_ms, result.prefill_ms, result.decode_ms, total_ms, msgspec.UNSET if age_ms is None else age_ms
            ),
            msgspec.UNSET if result.sids is None else _numbers(result.sids, _INT32, codec),
            msgspec.UNSET if result.fields is None else {name: list(values) for name, values in result.fields.items()},
        )
    )


def encode_error(
    to: Addressee, code: ErrorCode, message: str, *, queue_ms: float = 0.0, total_ms: float = 0.0
) -> bytes:
    """The answer without items: too late, refused or wrong, as ``status_of(code)`` says."""
    timing, fault = _Timing(queue_ms, 0.0, 0.0, total_ms), _Fault(code, message)
    return _ENCODE[to.codec](
        _ErrorFields(VERSION, to.request_id, to.user_id, to.labels, status_of(code), timing, fault)
    )


def _plain(items: ItemIds) -> list[int] | list[str]:
    return items.tolist() if isinstance(items, np.ndarray) else list(items)


def _numbers(array: NDArray[Any], little_endian: np.dtype[Any], codec: Codec) -> Any:
    return array.tolist() if codec == "json" else array.astype(little_endian, copy=False).tobytes()


class ReplyFault(msgspec.Struct, frozen=True):
    """Why a reply holds no items; ``code`` is one of the protocol's, or one of a later version."""

    code: str
    message: str = ""


class ReplyFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a reply that msgspec checks."""

    v: int
    status: Status
    request_id: str | None = None
    user_id: str | None = None
    labels: dict[str, str] = {}
    fields: dict[str, list[Any]] | None = None
    model: str | None = None
    catalog: str | None = None
    beam_widths: tuple[int, ...] = ()
    exhausted: bool = False
    degraded: tuple[str, ...] = ()
    truncated: bool = False
    context_tokens: int = 0
    reused_tokens: int = 0
    unknown_items: int = 0
    timing_ms: dict[str, float] = {}
    error: ReplyFault | None = None


class RecallReply(ReplyFields, frozen=True, kw_only=True, eq=False):
    """A reply as clients see it.

    ``items``: best first, int64 ``[k]`` or strings. ``scores``: float32 ``[k]``. ``sids``: int32 ``[k, levels]``.
    """

    items: ItemIds = NO_ITEMS
    scores: NDArray[np.float32]
    sids: NDArray[np.int32] | None = None


class _ReplyArrays(msgspec.Struct, frozen=True):
    """A reply's arrays before they are one: binary in msgpack, lists in JSON, where a score may be null."""

    items: list[int | str] = []
    scores: bytes | list[float | None] = b""
    sids: bytes | list[list[int]] | None = None


def decode_reply(value: bytes | None) -> RecallReply:
    """Read a reply in either codec. Raises ``ReplyError``."""
    try:
        content = _unpack(value or b"")
        checked = msgspec.convert(content, ReplyFields)
        if checked.v != VERSION:
            raise ReplyError(f"reply of protocol version {checked.v}, this client speaks {VERSION}")
        arrays = msgspec.convert(content, _ReplyArrays)
        items, shape = arrays.items, (len(arrays.items), len(checked.beam_widths))
        return RecallReply(
            **msgspec.structs.asdict(checked),
            items=msgspec.convert(items, list[str]) if items and type(items[0]) is str else np.array(items, np.int64),
            scores=_array(arrays.scores, "<f4"),
            sids=None if arrays.sids is None else _array(arrays.sids, "<i4").reshape(shape),
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException, msgspec.MsgspecError) as error:
        raise ReplyError(f"not a reply: {error}") from error


def _unpack(value: bytes) -> Any:
    return msgspec.json.decode(value) if codec_of(value) == "json" else msgpack.unpackb(value)


def _array(content: Any, little_endian: str) -> NDArray[Any]:
    dtype = np.dtype(little_endian)
    array = np.frombuffer(content, dtype) if isinstance(content, bytes) else np.array(content, dtype)
    return array.astype(dtype.newbyteorder("="))


def reply_as_json(reply: RecallReply) -> bytes:
    """The reply as the service writes it in JSON."""
    arrays = {
        "items": _plain(reply.items),
        "scores": reply.scores.tolist(),
        **({} if reply.sids is None else {"sids": reply.sids.tolist()}),
    }
    given = {name: content for name, content in msgspec.structs.asdict(reply).items() if content is not None}
    return msgspec.json.encode({**given, **arrays})
