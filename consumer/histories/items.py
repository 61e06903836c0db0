"""One user's item ids in few bytes, and the cap that keeps them few."""

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.request import ItemIds

Kind = Literal["int", "str"]

_INT64 = np.dtype("<i8")
_WIDTH = 8
_TEXT_BYTES = 64
"""Memory of a short string."""
_ARRAY_32 = b"\xdd"  # msgpack: an array, its length in four bytes
_strings = msgspec.msgpack.Decoder(list[str]).decode


@dataclass(frozen=True, slots=True)
class Cap:
    """``most`` items are used, and older ones go in blocks of ``drop``, as the model's description says."""

    most: int
    drop: int

    def excess(self, count: int) -> int:
        """How many of ``count`` items may go: whole blocks, and so that a prompt is cut as that of them all.

        Up to one block more than a prompt takes stays, which is how the prompt knows that there was more.
        """
        over = count - self.most - self.drop
        return 0 if over <= 0 else -(-over // self.drop) * self.drop


def kind_of(items: ItemIds) -> Kind | None:
    """None: of no items."""
    if isinstance(items, np.ndarray):
        return "int" if len(items) else None
    return "str" if len(items) else None


def memory_of(items: ItemIds) -> int:
    """About how many bytes they take as they were read."""
    return items.nbytes if isinstance(items, np.ndarray) else _TEXT_BYTES * len(items)


def pack(items: ItemIds) -> bytes:
    """Little-endian int64, or msgpack strings one after the other; what is packed apart may be joined."""
    if isinstance(items, np.ndarray):
        packed: bytes = items.astype(_INT64, copy=False).tobytes()
        return packed
    return b"".join(map(msgspec.msgpack.encode, items))


class PackedItems:
    """Oldest first. Appending costs what is appended."""

    __slots__ = ("_data", "count", "kind")

    def __init__(self, kind: Kind = "int", data: bytes = b"", count: int = 0) -> None:
        self.kind: Kind = kind
        self.count = count
        self._data = bytearray(data)

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        """Memory, with what is kept free for the next ones."""
        return self._data.__sizeof__()

    @property
    def packed(self) -> bytes:
        return bytes(self._data)

    def takes(self, items: ItemIds) -> bool:
        """They are of the kind that is here, or either holds none."""
        return not self.count or kind_of(items) in (None, self.kind)

    def append(self, items: ItemIds, cap: Cap) -> None:
        """Only what ``takes`` allows."""
        if not self.count:
            self.kind = kind_of(items) or self.kind
        self._data += pack(items)
        self.count += len(items)
        self.trim(cap)

    def trim(self, cap: Cap) -> None:
        if excess := cap.excess(self.count):
            size = excess * _WIDTH if self.kind == "int" else len(pack(self._as_strings()[:excess]))
            del self._data[:size]
            self.count -= excess

    def items(self) -> ItemIds:
        """A copy: int64 ``[count]`` or strings."""
        return self._as_ints() if self.kind == "int" else self._as_strings()

    def _as_ints(self) -> NDArray[np.int64]:
        return np.frombuffer(bytearray(self._data), _INT64).astype(np.int64, copy=False)  # may be written to

    def _as_strings(self) -> list[str]:
        return _strings(_ARRAY_32 + self.count.to_bytes(4, "big") + self._data)
