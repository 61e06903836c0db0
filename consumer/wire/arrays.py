"""Item ids and token ids on the wire: an array, or little-endian binary (base64 text in JSON)."""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consumer.wire.errors import Codec
from engine.errors import RequestError
from engine.request import ItemIds

_INT64 = np.dtype("<i8")
_INT32 = np.dtype("<i4")
ID_BYTES = _INT64.itemsize
_IS_NATIVE = _INT64.isnative
_BINARY = (bytearray, bytes)


def read_item_ids(name: str, content: Any, most: int, max_string: int) -> ItemIds:
    """An array of 64-bit ints or of strings, or binary int64, as int64 ``[n]`` or a list of strings."""
    if isinstance(content, _BINARY):
        return _from_binary(name, content, _INT64, most)
    kinds = _kinds(name, content)
    if kinds == {str}:
        if max(map(len, content)) > max_string:
            raise RequestError("too_large", f"{name}: an item id is longer than {max_string} characters")
        strings: list[str] = content
        return strings
    if kinds <= {int}:
        return _from_ints(name, content, np.dtype(np.int64))
    raise RequestError("bad_request", f"{name}: item ids must be all 64-bit ints or all strings")


def read_tokens(name: str, content: Any, most: int) -> NDArray[np.int32]:
    """An array of 32-bit ints, or binary int32, as int32 ``[n]``."""
    if isinstance(content, _BINARY):
        return _from_binary(name, content, _INT32, most)
    if not _kinds(name, content) <= {int}:
        raise RequestError("bad_request", f"{name}: token ids must be ints")
    return _from_ints(name, content, np.dtype(np.int32))


def ids_from_binary(content: bytearray) -> NDArray[np.int64]:
    """Int64 ``[n]`` over ``content``. Raises ValueError if that has no whole number of them."""
    ids = np.frombuffer(content, _INT64)
    return ids if _IS_NATIVE else ids.astype(np.int64)


def binary_of(name: str, content: Any, codec: Codec) -> Any:
    """In JSON, text in the place of binary is base64; everything else passes as it is."""
    if codec != "json" or not isinstance(content, str):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except ValueError:
        raise RequestError("bad_request", f"{name}: the text is not base64") from None


def _kinds(name: str, content: Any) -> set[type]:
    if not isinstance(content, list):
        raise RequestError("bad_request", f"{name}: must be an array, got {type(content).__name__}")
    return set(map(type, content))


def _from_ints(name: str, content: list[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        return np.fromiter(content, dtype, len(content))
    except OverflowError:
        raise RequestError("bad_request", f"{name}: an int does not fit {dtype.itemsize * 8} bits") from None


def _from_binary(name: str, content: bytes | bytearray, little_endian: np.dtype[Any], most: int) -> NDArray[Any]:
    step, size = little_endian.itemsize, len(content)
    if size % step:
        raise RequestError("bad_request", f"{name}: {size} bytes are no multiple of {step}")
    if size > most * step:
        raise RequestError("too_large", f"{name}: {size // step} entries, at most {most} are allowed")
    writable = content if isinstance(content, bytearray) else bytearray(content)
    array = np.frombuffer(writable, little_endian)
    return array if _IS_NATIVE else array.astype(little_endian.newbyteorder("="))
