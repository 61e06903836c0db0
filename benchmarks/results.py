"""Results on disk: one JSON file a run, written anew after every row, so that a run cut short keeps what it had."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


class ReportFile:
    """``head``: what all rows share, device and versions among it. A row says ``what`` was timed for which ``case``."""

    def __init__(self, path: Path, head: Mapping[str, object]) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._head = {**head, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, row: Mapping[str, object]) -> Row:
        self.rows.append(dict(row))
        self._save()
        return self.rows[-1]

    def note(self, **head: object) -> None:
        """Add to the head."""
        self._head |= head
        self._save()

    def _save(self) -> None:
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps({**self._head, "rows": self.rows}, indent=1) + "\n")
        os.replace(fresh, self.path)


def default_path(kind: str, device_name: str) -> Path:
    """Where results of this kind on this device are kept."""
    name = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-").removeprefix("nvidia-")
    return RESULTS / f"{kind}-{name}.json"


def load(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def find(rows: Sequence[Row], **wanted: object) -> Row | None:
    """The last row with these values: a case that was run again counts with its newest."""
    for row in reversed(rows):
        if all(row.get(key) == value for key, value in wanted.items()):
            return row
    return None
