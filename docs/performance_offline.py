"""The sections of ``recallstream bench offline`` on the page of measured results."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.breakdown import IDLE
from benchmarks.results import Row
from benchmarks.summary import (
    CHAINED_TARGET,
    FLOOR_TARGETS,
    RATE_TARGET,
    Line,
    ablated,
    best_rates,
    compared_beams,
    lines,
)
from benchmarks.tables import group_name, milliseconds, number, share
from docs.markdown import table, where

PLOTS = Path(__file__).parent / "plots"


def offline_section(stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    rows = report["rows"]
    found = list(lines(rows))
    models = ", ".join(dict.fromkeys(str(line.case["model"]) for line in found))
    yield f"## The engine: {models}{_subject(found)}\n"
    yield f"{where(report)}; catalog of {report['items']:,} items.\n"
    for title, group in groupby(found, key=group_name):
        yield from _case_table(title, list(group))
    yield from _independence(rows)
    yield from _best_table(found)
    yield from _beams_table(found)
    yield from _rivals_table(found)
    yield from _notes(rows)
    yield from _memory_table(rows)
    yield from (f"![{plot.stem}](plots/{plot.name})\n" for plot in sorted(PLOTS.glob(f"{stem}-*.svg")))
    yield from _ablation_table(rows)
    yield from _breakdown_tables(rows)
    yield from _errors(rows)


def _subject(found: Sequence[Line]) -> str:
    if any(line.engine.get("tight") for line in found):
        return ", memory"
    if any(compared_beams(found)):
        return ", scheduled beams"
    return ""


def _case_table(title: str, found: Sequence[Line]) -> Iterator[str]:
    """Columns that the run did not measure are left out."""
    yield f"### {title}\n"
    columns: dict[str, list[str]] = {
        "context": [str(line.case["context"]) for line in found],
        "batch": [str(line.case["batch"]) for line in found],
        "engine ms": [_spread(line.engine) for line in found],
        "floor": [milliseconds(line.floor) for line in found],
        "ratio": [share(line.over_floor) for line in found],
        "chained floor": [milliseconds(line.chained) for line in found],
        "ratio to it": [share(line.over_chained) for line in found],
        "cost of the constraint": [_percent(line.over_free) for line in found],
        "prefill (floor)": [_phase(line, 0) for line in found],
        "decode (floor)": [_phase(line, 1) for line in found],
        "two in flight": [milliseconds(line.pipelined) for line in found],
        "requests/s": [f"{max(_rates(line)):.1f}" for line in found],
        "SM MHz, W": [_card(line.engine) for line in found],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    yield from table(list(shown), list(zip(*shown.values(), strict=True)))
    yield from _verdict(found)


def _verdict(found: Sequence[Line]) -> Iterator[str]:
    """Targets met, and each one missed, by how much and in which phase; for runs that have both floors."""
    measured = [line for line in found if line.over_floor is not None and line.over_chained is not None]
    if not measured:
        return
    missed = []
    for line in measured:
        over = [
            f"{ratio:.3f} of the {name} (target {target})"
            for name, ratio, target in (
                ("floor", line.over_floor, FLOOR_TARGETS[line.case["precision"]]),
                ("chained floor", line.over_chained, CHAINED_TARGET if line.case["precision"] == "bf16" else None),
            )
            if ratio is not None and target is not None and ratio > target
        ]
        if over:
            missed.append(
                f"- context {line.case['context']}, batch {line.case['batch']}: {' and '.join(over)}{_lost(line)}"
            )
    if missed:
        yield f"The targets are met by {len(measured) - len(missed)} of {len(measured)} cases. Missed:\n"
        yield "\n".join(missed) + "\n"
    else:
        yield "The targets are met by every case.\n"


def _lost(line: Line) -> str:
    floor = _floor_phases(line)
    if floor is None:
        return ""
    prefill, decode = (
        line.engine[f"{phase}_ms"] - least for phase, least in zip(("prefill", "decode"), floor, strict=True)
    )
    host = line.engine["ms"] - line.engine["prefill_ms"] - line.engine["decode_ms"]
    return f"; over the floor: prefill {prefill:+.2f} ms, decode {decode:+.2f} ms, host {host:+.2f} ms"


def _phase(line: Line, place: int) -> str:
    """Prefill or decode of the engine, the floor's in brackets; norms and activations are shared out by tokens."""
    engine = number(line.engine[("prefill_ms", "decode_ms")[place]])
    floor = _floor_phases(line)
    return engine if floor is None else f"{engine} ({number(floor[place])})"


def _floor_phases(line: Line) -> tuple[float, float] | None:
    floor, case = line.floor, line.case
    if floor is None or "ms" not in floor:
        return None
    prefill_rows = case["batch"] * case["context"]
    prefill_share = prefill_rows / (prefill_rows + case["decode_rows"])
    prefill = floor["prefill_products"] + floor["prefill_attention"] + prefill_share * floor["elementwise"]
    return prefill, floor["ms"] - prefill


def _independence(rows: Sequence[Row]) -> Iterator[str]:
    """How many requests get the same answer alone as in a batch."""
    shares = [(row["batch"], row["share"]) for row in rows if "share" in row]
    if shares:
        requests = sum(batch for batch, _ in shares)
        same = sum(batch * portion for batch, portion in shares)
        yield f"Answers that are bit for bit the same alone as in the batch: {same:.0f} of {requests}.\n"


def _best_table(found: Sequence[Line]) -> Iterator[str]:
    if best := list(best_rates(found)):
        yield "### Most requests a second with a mean latency of at most 100 ms\n"
        yield "Among the batches above, one at a time or two in flight; the floor takes one at a time.\n"
        yield from table(
            ("", "batch", "requests/s", "the floor's batch", "the floor's requests/s", "ratio"),
            [
                (each.name, f"{each.engine_batch}{', two in flight' if 'two' in each.engine_what else ''}",
                 f"{each.engine_rate:.1f}", each.floor_batch, f"{each.floor_rate:.1f}", f"{each.ratio:.3f}")
                for each in best
            ],
        )  # fmt: skip
        met = sum(each.ratio >= RATE_TARGET for each in best)
        yield f"The target, {RATE_TARGET} of the floor's rate, is met by {met} of {len(best)}.\n"


def _beams_table(found: Sequence[Line]) -> Iterator[str]:
    for group in compared_beams(found):
        widest = group[0]
        of = "" if widest.case["precision"] == "bf16" else f", {widest.case['precision']}"
        yield f"### Scheduled beams and a margin beside a fixed width{of}\n"
        yield from table(
            ("beam", "context", "batch", "ms", "of the fixed width's", "decode ms", "of it"),
            [
                (line.case["beam"], line.case["context"], line.case["batch"], _spread(line.engine),
                 share(line.engine["ms"] / widest.engine["ms"]), number(line.engine["decode_ms"]),
                 share(line.engine["decode_ms"] / widest.engine["decode_ms"]))
                for line in group
            ],
        )  # fmt: skip


def _rivals_table(found: Sequence[Line]) -> Iterator[str]:
    rows = [
        (
            line.case["case"],
            number(line.engine["ms"]),
            milliseconds(line.flattened),
            _times(line, line.flattened),
            milliseconds(line.transformers),
            _times(line, line.transformers),
        )
        for line in found
        if line.flattened is not None or line.transformers is not None
    ]
    if rows:
        yield "### Beside flattened beams and transformers\n"
        yield from table(("", "engine ms", "flattened beams", "times", "transformers", "times"), rows)


def _memory_table(rows: Sequence[Row]) -> Iterator[str]:
    tight = [row for row in rows if row.get("tight") and row.get("peak_gb")]
    if tight:
        yield "### Memory\n"
        yield (
            "Pools for one batch. *Needed*: weights and the keys and values that the batch must hold. *Peak*: the most "
            "that was allocated while batches ran; *device*: in use on it, CUDA's own memory and graphs included.\n"
        )
        yield from table(
            ("", "needed GB", "peak", "device"),
            [(row["case"], row["needed_gb"], row["peak_gb"], row["device_gb"]) for row in tight],
        )


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    """What a row says of itself."""
    noted = [row for row in rows if "note" in row]
    if noted:
        yield "\n".join(f"- {row['what']}, {row['case']}: {row['note']}" for row in noted) + "\n"


def _ablation_table(rows: Sequence[Row]) -> Iterator[str]:
    if without := list(ablated(rows)):
        yield f"### What each part is worth\n\n{without[0][1]['of']}; one part off at a time.\n"
        yield from table(
            ("engine without", "ms", "with it", "ratio"),
            [(name, number(row["ms"]), number(whole["ms"]), f"{row['ms'] / whole['ms']:.3f}")
             for name, row, whole in without],
        )  # fmt: skip


def _breakdown_tables(rows: Sequence[Row]) -> Iterator[str]:
    profiled = _smallest_and_largest([row for row in rows if "phases_ms" in row])
    if profiled:
        yield "### Where the time goes\n"
        yield "One profiled batch of the smallest and largest cases, ms by kernel family; profiling makes it slower.\n"
    for row in profiled:
        phases: dict[str, dict[str, float]] = row["phases_ms"]
        families = sorted({part for phase in phases.values() for part in phase}, key=lambda part: (part == IDLE, part))
        yield f"{row['case']}:\n"
        yield from table(
            ("", *families, "sum"),
            [
                (name, *(number(phase.get(part)) for part in families), number(sum(phase.values())))
                for name, phase in phases.items()
            ],
        )


def _smallest_and_largest(rows: Sequence[Row]) -> list[Row]:
    batches = {row["batch"] for row in rows}
    return [row for row in rows if row["batch"] in (min(batches), max(batches))]


def _errors(rows: Sequence[Row]) -> Iterator[str]:
    """What did not run, transformers apart: it says so in its own column."""
    failed = [row for row in rows if "error" in row and row["what"] != "transformers"]
    if failed:
        yield "Did not run:\n"
        yield "\n".join(f"- {row['case']}, {row['what']}: {row['error']}" for row in failed) + "\n"


def _spread(row: Row) -> str:
    return f"**{number(row['ms'])}** ({number(row['min_ms'])} to {number(row['max_ms'])})"


def _rates(line: Line) -> Iterator[float]:
    for row in (line.engine, line.pipelined):
        if row is not None and "ms" in row:
            yield row["requests_per_s"]


def _times(line: Line, rival: Row | None) -> str:
    return "" if rival is None or "ms" not in rival else f"{rival['ms'] / line.engine['ms']:.1f}"


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def _card(row: Row) -> str:
    card = row.get("card")
    return f"{card['sm_mhz']:.0f}, {card['watts']:.0f}" if card else ""
