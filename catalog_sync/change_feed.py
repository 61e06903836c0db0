"""Records of item changes, as a topic holds them, into delta versions."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from catalog_sync.changes import int64_of, load_upserts, no_items
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.feed_position import FeedPosition, Fresh
from catalog_sync.json_lines import Int64
from catalog_sync.layout import Manifest
from engine.catalog.catalog import Catalog, Ids
from engine.errors import CatalogError

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """``value``: a JSON object, the row of an item table; or with ``"withdrawn": true`` and ``item_id`` alone. None
    withdraws the item whose id, as text, is ``key``.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class FeedResult:
    """``version``: none if there was nothing to publish. ``refused``: what was wrong with which record.

    ``back``: from where to read again, by partition; then nothing was published. ``left_out``: records of versions that
    were found bad.
    """

    version: str | None = None
    back: dict[int, int] = field(default_factory=dict)
    left_out: int = 0
    chain: int = 0
    upserts: int = 0
    withdrawn: int = 0
    refused: list[str] = field(default_factory=list)


class _Change(msgspec.Struct):
    item_id: Int64 | str
    withdrawn: bool = False


_CHANGE = msgspec.json.Decoder(_Change)


@dataclass(frozen=True, slots=True)
class _Upsert:
    place: str
    line: bytes


class ChangeFeed:
    """Publishes batches of a topic's records as deltas of a model's current version; of an item the last record counts.

    Publishing the same records again makes a version with the same items, so that a batch may be read again. Redis
    errors pass through.
    """

    def __init__(self, deltas: DeltaPublisher, model: str, topic: str) -> None:
        self._deltas, self._model, self._topic = deltas, model, topic
        self._position = FeedPosition(deltas.publisher, topic)

    def begin(self, otherwise: Mapping[int, int]) -> dict[int, int]:
        """Where to begin with some partitions: behind what the current version holds. Raises CatalogError.

        ``otherwise``: where, if it says nothing of a partition.
        """
        return self._position.begin(self._deltas.head(self._model).manifest, otherwise)

    def back(self) -> dict[int, int]:
        """From where to read again, by partition, though nothing new has come. Raises CatalogError."""
        return self._position.back(self._deltas.head(self._model), {})

    def publish(self, records: Sequence[ChangeRecord]) -> FeedResult:
        """One delta of all records that make sense; those of a partition stand in order.

        Raises CatalogError where the records are not at fault; another publisher's version is taken as the new parent.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._publish(records)
            except CatalogError as error:
                if error.reason != "conflict" or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _publish(self, records: Sequence[ChangeRecord]) -> FeedResult:
        head = self._deltas.head(self._model)
        begins = {record.partition: record.offset for record in reversed(records)}
        ends = {record.partition: record.offset + 1 for record in records}
        if back := self._position.back(head, begins):
            return FeedResult(back={**begins, **back})
        result = FeedResult()
        fresh = self._position.fresh(head, begins)
        changes = self._last_of_each(_to_publish(records, fresh, result), head.manifest, result)
        upserts = self._upserts([change for change in changes.values() if change is not None], head.manifest, result)
        withdrawn = _ids([item for item, change in changes.items() if change is None], head.manifest)
        after = {each: max(end, fresh.held.get(each, 0)) for each, end in ends.items()}
        if upserts is not None or len(withdrawn):
            positions = {self._topic: self._position.after(head, begins, after)}
            try:
                manifest, _ = self._deltas.publish(head, upserts, [withdrawn], positions=positions)
            except CatalogError as error:
                if error.reason != "quarantined":
                    raise
                result.left_out += len(changes)  # they make a version found bad once more
            else:
                result.version, result.chain = manifest.version, self._deltas.chain_length(manifest)
                result.upserts, result.withdrawn = manifest.items, manifest.withdrawn
        self._position.published(result.version, ends, after)
        return result

    def _last_of_each(
        self, records: Sequence[ChangeRecord], parent: Manifest, result: FeedResult
    ) -> dict[int | str, _Upsert | None]:
        """The last change of every item: its row, or None if it is withdrawn."""
        changes: dict[int | str, _Upsert | None] = {}
        for record in records:
            try:
                item, change = _read(record, self._place(record), parent)
            except (ValueError, RecursionError) as error:  # msgspec's errors and those of texts are ValueErrors
                result.refused.append(f"{self._place(record)}: {error}")
                continue
            changes.pop(item, None)
            changes[item] = change
        return changes

    def _place(self, record: ChangeRecord) -> str:
        return f"{self._topic} {record.partition} @ {record.offset}"

    def _upserts(self, rows: Sequence[_Upsert], parent: Manifest, result: FeedResult) -> Catalog | None:
        sound = self._sound(rows, parent, result)
        return _load(sound, parent) if sound else None

    def _sound(self, rows: Sequence[_Upsert], parent: Manifest, result: FeedResult) -> list[_Upsert]:
        """The rows that make sense; the others are found by halves."""
        try:
            if rows:
                _load(rows, parent)
        except CatalogError as error:
            if len(rows) == 1:
                result.refused.append(f"{rows[0].place}: {error.message}")
                return []
            middle = len(rows) // 2
            return self._sound(rows[:middle], parent, result) + self._sound(rows[middle:], parent, result)
        return list(rows)


def _to_publish(records: Sequence[ChangeRecord], fresh: Fresh, result: FeedResult) -> list[ChangeRecord]:
    """Records that the catalog does not hold, and that made no bad version."""
    new = [record for record in records if not fresh.is_held(record.partition, record.offset)]
    sound = [record for record in new if not fresh.is_bad(record.partition, record.offset)]
    result.left_out = len(new) - len(sound)
    return sound


def _read(record: ChangeRecord, place: str, parent: Manifest) -> tuple[int | str, _Upsert | None]:
    if record.value is None:
        if record.key is None:
            raise ValueError("neither a key nor a value")
        text = record.key.decode()
        return text if parent.ids == "string" else int64_of(text), None
    change = _CHANGE.decode(record.value)
    if isinstance(change.item_id, int) is not (parent.ids == "int64"):
        raise ValueError(f"item_id {change.item_id!r}: the catalog's ids are {parent.ids}")
    if change.withdrawn:
        return change.item_id, None
    row: dict[str, Any] = msgspec.json.decode(record.value)
    row.pop("withdrawn", None)
    return change.item_id, _Upsert(place, msgspec.json.encode(row))


def _load(rows: Sequence[_Upsert], parent: Manifest) -> Catalog:
    with tempfile.TemporaryDirectory(prefix="recallstream-") as directory:
        path = Path(directory) / "changes.jsonl"
        path.write_bytes(b"\n".join(row.line for row in rows))
        try:
            return load_upserts(path, parent)
        except CatalogError as error:  # the file's name tells nobody anything
            raise CatalogError(error.reason, error.message.removeprefix(f"{path}: ")) from error


def _ids(items: Sequence[int | str], parent: Manifest) -> Ids:
    if not items:
        return no_items(parent).ids
    return np.array(items, dtype=np.int64) if parent.ids == "int64" else pa.array(items, pa.string())
