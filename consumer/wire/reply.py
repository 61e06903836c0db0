"""The reply record, written in the codec of its request."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consumer.wire.codec import write_map
from consumer.wire.errors import Addressee, Codec
from engine.errors import ErrorCode
from engine.request import RecallResult

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
        "items": result.items.tolist() if isinstance(result.items, np.ndarray) else list(result.items),
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
        "v": 1,
        "request_id": to.request_id,
        "user_id": to.user_id,
        "labels": dict(to.labels),
        "status": status,
    }


def _timing(queue_ms: float, total_ms: float, prefill_ms: float = 0.0, decode_ms: float = 0.0) -> dict[str, float]:
    return {"queue": queue_ms, "prefill": prefill_ms, "decode": decode_ms, "total": total_ms}


def _floats(scores: NDArray[np.float32], codec: Codec) -> Any:
    return scores.tolist() if codec == "json" else scores.astype("<f4").tobytes()


def _ints(sids: NDArray[np.int32], codec: Codec) -> Any:
    return sids.tolist() if codec == "json" else sids.astype("<i4").tobytes()
