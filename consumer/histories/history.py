"""What is held of one user: items, and up to which offset of each partition the log has made them what they are."""

from collections.abc import Mapping
from typing import Literal, Self

import msgspec

from consumer.histories.items import Cap, Kind, PackedItems
from engine.request import ItemIds

Change = Literal["append", "extend", "set", "forget"]
"""``append``: an event, which may begin a history. ``extend``: the same of a request, which needs one.

``set``: the whole history. ``forget``: nothing may be left but the mark.
"""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """``marks``: partition to the offset of the last record applied. ``count`` is -1 where no history is held."""

    marks: tuple[tuple[int, int], ...]
    kind: Kind
    count: int


_decode = msgspec.msgpack.Decoder(Head).decode


class History:
    """A function of the log alone: every record is applied once, in the order of its partition.

    ``items`` is none where nothing is held: forgotten, or not begun.
    """

    __slots__ = ("items", "marks")

    def __init__(self, marks: Mapping[int, int] | None = None, items: PackedItems | None = None) -> None:
        self.marks = dict(marks or {})
        self.items = items

    @classmethod
    def parse(cls, head: bytes, packed: bytes, cap: Cap) -> tuple[Self, int]:
        """Also how many items ``packed`` holds. Raises ValueError for what ``head`` and ``pack`` did not write."""
        try:
            read = _decode(head)
            items = None if read.count < 0 else PackedItems(read.kind, packed, read.count)
            if items is not None and len(items.items()) != read.count:
                raise ValueError("the number of items is another")
        except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
            raise ValueError(str(error)) from error
        if items is not None:
            items.trim(cap)
        return cls(dict(read.marks), items), max(0, read.count)

    def head(self, stored: int | None = None) -> bytes:
        """Equal for equal marks. ``stored``: items as they stand in the store, where those are more."""
        count = -1 if self.items is None else self.items.count if stored is None else stored
        kind: Kind = "int" if self.items is None else self.items.kind
        return msgspec.msgpack.encode(Head(tuple(sorted(self.marks.items())), kind, count))

    def has(self, partition: int, offset: int) -> bool:
        """The record was applied before."""
        return offset <= self.marks.get(partition, -1)

    def covers(self, marks: Mapping[int, int]) -> bool:
        """All that made ``marks`` was applied."""
        return all(self.has(partition, offset) for partition, offset in marks.items())

    def fault(self, change: Change, items: ItemIds) -> str | None:
        """Why this change cannot be applied."""
        if self.items is None or change in ("set", "forget") or self.items.takes(items):
            return None
        return f"the history that is held has {self.items.kind} ids"

    def apply(self, change: Change, items: ItemIds, partition: int, offset: int, cap: Cap) -> None:
        """Only what ``fault`` has nothing against and ``has`` does not know."""
        self.marks[partition] = offset
        if change == "forget":
            self.items = None
            return
        if change == "set" or self.items is None:
            self.items = PackedItems()
        self.items.append(items, cap)

    def snapshot(self) -> ItemIds | None:
        return None if self.items is None else self.items.items()

    @property
    def empty(self) -> bool:
        """Nothing is held, and no record has made it so."""
        return self.items is None and not self.marks

    @property
    def nbytes(self) -> int:
        return 0 if self.items is None else self.items.nbytes


def marks_of(head: bytes) -> dict[int, int]:
    """The marks in a head that ``History.head`` wrote."""
    return dict(_decode(head).marks)
