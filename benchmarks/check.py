"""Compares a run with the committed results and names what got slower.

    python -m benchmarks.check RUN.json [--against COMMITTED.json] [--tolerance 0.05]

Rows are matched by what was timed and its case. A median counts as slower if it is more than ``--tolerance`` above the
committed one (5 %; a card's own variation between runs is up to 4 %) and its fastest repetition is above the committed
median too. Floors and rivals are compared as well, but only named: they say that the card was slower. Exit code 1 if
something of ours got slower, 2 if the runs cannot be compared.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import RESULTS, Row, find, load

TOLERANCE = 0.05
EXIT_SLOWER, EXIT_USAGE = 1, 2
_KERNEL = "kernel: "


@dataclass(frozen=True, slots=True)
class Change:
    """One timing in both runs, milliseconds."""

    what: str
    case: str
    before: float
    now: float
    now_min: float

    @property
    def ratio(self) -> float:
        return self.now / self.before

    def slower(self, tolerance: float) -> bool:
        return self.ratio > 1 + tolerance and self.now_min > self.before

    @property
    def is_ours(self) -> bool:
        """Not a floor's or a rival's."""
        return self.what.startswith(("engine", "online", _KERNEL))


def changes(before: Sequence[Row], now: Sequence[Row]) -> Iterator[Change]:
    """Every timing that both runs have."""
    committed = [timed for row in before if (timed := _timed(row)) is not None]
    for row in filter(None, map(_timed, now)):
        old = find(committed, what=row["what"], case=row["case"])
        if old is not None:
            now_min: float = row.get("min_ms", row["ms"])
            yield Change(row["what"], row["case"], old["ms"], row["ms"], now_min)


def _timed(row: Row) -> Row | None:
    """The row with ``what`` and ``ms``, which a kernel's has not; None if it has no time."""
    if "ms" in row:
        return row
    us = row.get("us", row.get("gluon_us"))
    return None if us is None else {"what": _KERNEL + row["kernel"], "case": row["case"], "ms": us / 1e3}


def match(run: dict[str, Any], results: Path) -> Path | None:
    """The committed results of the same kind on the same device that share the most cases with ``run``."""

    def shared(path: Path) -> int:
        other = load(path)
        same = all(other.get(key) == run[key] for key in ("kind", "device"))
        return len(list(changes(other["rows"], run["rows"]))) if same else 0

    return max(results.glob(f"{run['kind']}*.json"), key=shared, default=None)


def compare(run: dict[str, Any], committed: dict[str, Any], tolerance: float, console: Console) -> int:
    """Show every change; returns the exit code."""
    found = list(changes(committed["rows"], run["rows"]))
    if committed.get("device") != run["device"] or not found:
        console.print(
            f"nothing to compare: {committed.get('device')} and {run['device']}, {len(found)} cases in common"
        )
        return EXIT_USAGE
    table = Table("", "case", "committed ms", "now", "ratio", title=f"{run['device']}, tolerance {tolerance:.0%}")
    for change in sorted(found, key=lambda each: -each.ratio):
        style = "red" if change.slower(tolerance) and change.is_ours else None
        numbers = f"{change.before:.3f}", f"{change.now:.3f}", f"{change.ratio:.3f}"
        table.add_row(change.what, change.case, *numbers, style=style)
    console.print(table)
    slower = [change for change in found if change.slower(tolerance)]
    for change in slower:
        note = "" if change.is_ours else " (not ours: the card was slower)"
        console.print(f"slower: {change.what}, {change.case}: {change.ratio:.3f} of the committed time{note}")
    return EXIT_SLOWER if any(change.is_ours for change in slower) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="JSON of `recallstream bench offline`, `online` or `kernels`")
    parser.add_argument("--against", type=Path, help="default: the committed results of the same kind and device")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    arguments = parser.parse_args()
    console = Console(soft_wrap=True)
    run = load(arguments.run)
    against = arguments.against or match(run, RESULTS)
    if against is None:
        console.print(f"there are no committed {run['kind']} results to compare with")
        return EXIT_USAGE
    return compare(run, load(against), arguments.tolerance, console)


if __name__ == "__main__":
    sys.exit(main())
