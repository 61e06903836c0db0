"""Records of item changes, as a topic holds them, into delta versions."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from catalog_sync.changes import int64_of, load_upserts, no_items
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.json_lines import Int64
from catalog_sync.layout import Manifest
from engine.catalog.catalog import Catalog, Ids
from engine.errors import CatalogError

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """``place`` is how an error names it. ``value``: a JSON object, the row of an item table; or with
    ``"withdrawn": true`` and ``item_id`` alone. None withdraws the item whose id, as text, is ``key``.
    """

    place: str
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class FeedResult:
    """``version``: none if there was nothing to publish. ``refused``: what was wrong with which record."""

    version: str | None = None
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
    """Publishes batches of records as deltas of a model's current version; of one item the last record counts.

    Publishing the same records again makes a version with the same items, so that a batch whose offsets were not
    committed may be read again.
    """

    def __init__(self, deltas: DeltaPublisher, model: str) -> None:
        self._deltas, self._model = deltas, model

    def publish(self, records: Sequence[ChangeRecord]) -> FeedResult:
        """One delta of all records that make sense. Redis errors pass through.

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
        result = FeedResult(version=None)
        changes = self._last_of_each(records, head.manifest, result)
        upserts = self._upserts([change for change in changes.values() if change is not None], head.manifest, result)
        withdrawn = _ids([item for item, change in changes.items() if change is None], head.manifest)
        if upserts is None and not len(withdrawn):
            return result
        manifest, _ = self._deltas.publish(head, upserts, [withdrawn])
        result.version, result.chain = manifest.version, self._deltas.chain_length(manifest)
        result.upserts, result.withdrawn = manifest.items, manifest.withdrawn
        return result

    def _last_of_each(
        self, records: Sequence[ChangeRecord], parent: Manifest, result: FeedResult
    ) -> dict[int | str, _Upsert | None]:
        """The last change of every item: its row, or None if it is withdrawn."""
        changes: dict[int | str, _Upsert | None] = {}
        for record in records:
            try:
                item, change = _read(record, parent)
            except (ValueError, RecursionError) as error:  # msgspec's errors and those of texts are ValueErrors
                result.refused.append(f"{record.place}: {error}")
                continue
            changes.pop(item, None)
            changes[item] = change
        return changes

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


def _read(record: ChangeRecord, parent: Manifest) -> tuple[int | str, _Upsert | None]:
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
    return change.item_id, _Upsert(record.place, msgspec.json.encode(row))


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
