"""Users who come back, on the page of measured results."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.results import Row, find
from benchmarks.sessions import FLOOR, HOST, NEW_EVENTS, PROFILE, SESSION, TARGET
from docs.markdown import table, where


def sessions_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    """Resident contexts against cold ones and the floor, by numbers of new events, and from the host."""
    rows = report["rows"]
    first = next(row for row in rows if row["what"] == SESSION)
    yield f"## Users who come back: {report['model']}\n"
    yield f"{where(report)}. A history of {report['history']:,} events and {first['new_events']} more,"
    yield f"{first['context']:,} tokens; beam {report['beam']}, bf16, {report['items']:,} items; requests to items."
    yield "*Cold*: the whole context is computed; *resident*: what the request before left is continued, so"
    yield f"{first['new_tokens']} tokens a request are computed, by turns with the cold run. *Floor*: that of decoding,"
    yield "and of the products, attention and traffic of the new tokens alone. *Rest*: neither prefill nor search.\n"
    yield from _against_floor(rows, SESSION)
    met = [row["within_target"] for row in rows if row["what"] == f"{SESSION}, {FLOOR}"]
    verdict = "met" if all(met) else f"**missed**: met by {sum(met)} of {len(met)}"
    yield f"Target: at most {TARGET} of the floor: {verdict}.\n"
    if any(row["what"] == HOST for row in rows):
        yield "From pinned memory of the host, where the device's pages had gone to others. *Rest* is most of all the"
        yield "copy, and the floor is as above, so it copies nothing. *GB/s*: of what the time is longer by.\n"
        yield from _against_floor(rows, HOST, copied=True)
    yield from _profiles([row for row in rows if row["what"] == PROFILE])
    yield from _by_events([row for row in rows if row["what"] == NEW_EVENTS])


def _against_floor(rows: Sequence[Row], what: str, copied: bool = False) -> Iterator[str]:
    head = ["batch", "cold", "resident", "times as fast", "prefill", "search", "rest", "floor", "of the floor"]
    found = [row for row in rows if row["what"] == what]
    lines = [[*_line(row, find(rows, what=f"{what}, {FLOOR}", case=row["case"]))] for row in found]
    if copied:
        head += ["GB copied", "GB/s"]
        for line, row in zip(lines, found, strict=True):
            line += _copy(row, find(rows, what=SESSION, case=row["case"]))
    yield from table(head, lines)


def _line(row: Row, floor: Row | None) -> tuple[object, ...]:
    rest = row["ms"] - row["prefill_ms"] - row["decode_ms"]
    times = [row["cold"]["ms"], row["ms"], row["cold_over_session"], row["prefill_ms"], row["decode_ms"], rest]
    of_floor = ("", "") if floor is None else (f"{floor['ms']:.1f}", f"{floor['of_the_floor']:.2f}")
    return row["batch"], *(f"{time:.1f}" for time in times), *of_floor


def _copy(row: Row, resident: Row | None) -> tuple[str, str]:
    longer = 0 if resident is None else row["ms"] - resident["ms"]
    return f"{row['copied_gb']:.2f}", f"{row['copied_gb'] / longer * 1e3:.0f}" if longer > 0 else ""


def _profiles(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    yield "Where the device's time goes, milliseconds of a profiled batch. A level of the search begins with its"
    yield "selection; the last one ends with the copies of new pages to the host, which nobody waits for.\n"
    parts = list(dict.fromkeys(part for row in rows for phase in row["parts"].values() for part in phase))
    yield from table(
        ("batch", "", *parts),
        [
            (row["batch"], name, *(f"{phase[part]:.2f}" if part in phase else "" for part in parts))
            for row in rows
            for name, phase in row["parts"].items()
        ],
    )


def _by_events(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    events = sorted({row["new_events"] for row in rows})
    yield "By the number of new events, milliseconds. None: what is left of a request if all its events were computed"
    yield "ahead of it:\n"
    lines = []
    for batch in sorted({row["batch"] for row in rows}):
        found = [find(rows, batch=batch, new_events=number) for number in events]
        lines.append((batch, *(f"{row['ms']:.1f} ({row['prefill_ms']:.1f})" if row else "" for row in found)))
    yield from table(("batch", *(f"{number} (prefill)" for number in events)), lines)
