"""Results on disk: one JSON file a run, written anew after every row, so that a run cut short keeps what it had."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import Timing

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


def timed(what: str, case: Mapping[str, object], timing: Timing, **more: object) -> Row:
    """A row: ``ms`` is the median, beside it the spread."""
    values = {"ms": timing.median_ms, "min_ms": timing.min_ms, "max_ms": timing.max_ms}
    return {"what": what, **case, **{k: round(v, 4) for k, v in values.items()}, "runs": timing.runs, **more}


def default_path(kind: str, device_name: str) -> Path:
    """Where results of this kind on this device are kept."""
    return RESULTS / f"{kind}-{re.sub(r'[^a-z0-9]+', '-', device_name.lower()).strip('-')}.json"


def load(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def committed(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and contents of the results of a kind, ordered by name."""
    for path in sorted(RESULTS.glob(f"{kind}*.json")):
        yield path.stem, load(path)


def find(rows: Sequence[Row], **wanted: object) -> Row | None:
    """The last row with these values: a case that was run again counts with its newest."""
    for row in reversed(rows):
        if all(row.get(key) == value for key, value in wanted.items()):
            return row
    return None
