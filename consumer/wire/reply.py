"""The reply record: written by the service in the codec of its request, read by clients."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgpack
import msgspec
import numpy as np
from numpy.typing import NDArray

from consumer.wire.codec import codec_of, write_map
from consumer.wire.errors import Addressee, Codec, ReplyError
from engine.errors import ErrorCode
from engine.request import NO_ITEMS, ItemIds, RecallResult

VERSION = 1
Status = Literal["ok", "expired", "rejected", "error"]

_STATUS: Mapping[ErrorCode, Status] = {"expired": "expired", "cancelled": "expired", "overloaded": "rejected"}


def status_of(code: ErrorCode) -> Status:
    """``expired`` for too late and cancelled, ``rejected`` for overload, else ``error``."""
    return _STATUS.get(code, "error")


def encode_reply(
    to: Addressee, result: RecallResult, *, queue_ms: float, total_ms: float, degraded: Sequence[str] = ()
) -> bytes:
    """The answer with items. ``queue_ms``: record read to batch start; ``total_ms``: record read to here."""
    fields = _head(to, "ok")
    fields |= {
        "items": _plain(result.items),
        "scores": _floats(result.scores, to.codec),
        "model": result.model,
        "catalog": result.catalog,
        "beam_widths": list(result.beam_widths),
        "exhausted": result.exhausted,
        "degraded": list(degraded),
        "truncated": result.truncated,
        "context_tokens": result.context_tokens,
        "reused_tokens": result.reused_tokens,
        "unknown_items": result.unknown_items,
        "timing_ms": _timing(queue_ms, total_ms, result.prefill_ms, result.decode_ms),
    }
    if result.sids is not None:
        fields["sids"] = _ints(result.sids, to.codec)
    if result.fields is not None:
        fields["fields"] = {name: list(values) for name, values in result.fields.items()}
    return write_map(fields, to.codec)


def encode_error(
    to: Addressee, code: ErrorCode, message: str, *, queue_ms: float = 0.0, total_ms: float = 0.0
) -> bytes:
    """The answer without items: too late, refused or wrong, as ``status_of(code)`` says."""
    fields = _head(to, status_of(code))
    fields["timing_ms"] = _timing(queue_ms, total_ms)
    fields["error"] = {"code": code, "message": message}
    return write_map(fields, to.codec)


def _head(to: Addressee, status: Status) -> dict[str, Any]:
    return {
        "v": VERSION,
        "request_id": to.request_id,
        "user_id": to.user_id,
        "labels": dict(to.labels),
        "status": status,
    }


def _timing(queue_ms: float, total_ms: float, prefill_ms: float = 0.0, decode_ms: float = 0.0) -> dict[str, float]:
    return {"queue": queue_ms, "prefill": prefill_ms, "decode": decode_ms, "total": total_ms}


def _plain(items: ItemIds) -> list[int] | list[str]:
    return items.tolist() if isinstance(items, np.ndarray) else list(items)


def _floats(scores: NDArray[np.float32], codec: Codec) -> Any:
    return scores.tolist() if codec == "json" else scores.astype("<f4").tobytes()


def _ints(sids: NDArray[np.int32], codec: Codec) -> Any:
    return sids.tolist() if codec == "json" else sids.astype("<i4").tobytes()


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
