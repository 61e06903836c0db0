"""The section of ``recallstream bench offline`` on the page of measured results."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.breakdown import IDLE
from benchmarks.results import Row
from benchmarks.summary import CHAINED_TARGET, FLOOR_TARGETS, RATE_TARGET, Line, ablated, best_rates, lines
from benchmarks.tables import group_name, milliseconds, number, share
from docs.markdown import table, where

PLOTS = Path(__file__).parent / "plots"


def offline_section(stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    rows = report["rows"]
    found = list(lines(rows))
    models = ", ".join(dict.fromkeys(str(line.case["model"]) for line in found))
    yield f"## The engine: {models}\n"
    yield f"{where(report)}; catalog of {report['items']:,} items.\n"
    yield (
        "*Two in flight*: milliseconds from one batch's answers to the next one's, with two batches in the engine. "
        "*Needed*: weights and the pools of keys and values, of the peak.\n"
    )
    for title, group in groupby(found, key=group_name):
        yield from _case_table(title, list(group))
    yield from _independence(rows)
    yield from _best_table(found)
    yield from (f"![{plot.stem}](plots/{plot.name})\n" for plot in sorted(PLOTS.glob(f"{stem}-*.svg")))
    yield from _ablation_table(rows)
    yield from _breakdown_tables(rows)


def _case_table(title: str, found: Sequence[Line]) -> Iterator[str]:
    yield f"### {title}\n"
    yield from table(
        ("context", "batch", "engine ms", "floor", "over it", "chained", "over it", "flattened", "transformers",
         "prefill (floor)", "decode (floor)", "two in flight", "requests/s", "peak GB (needed)", "SM MHz, W"),
        [
            (
                line.case["context"], line.case["batch"], _spread(line.engine),
                milliseconds(line.floor), share(line.over_floor), milliseconds(line.chained), share(line.over_chained),
                milliseconds(line.flattened), milliseconds(line.transformers),
                *_phases(line), milliseconds(line.pipelined), f"{line.engine['requests_per_s']:.1f}",
                _memory(line.engine), _card(line.engine),
            )
            for line in found
        ],
    )  # fmt: skip
    yield from _verdict(found)


def _verdict(found: Sequence[Line]) -> Iterator[str]:
    """Targets met, and each one missed, by how much and in which phase."""
    missed = []
    for line in found:
        over = [
            f"{ratio:.3f} of the {name} (target {target})"
            for name, ratio, target in (
                ("floor", line.over_floor, FLOOR_TARGETS[line.case["precision"]]),
                ("chained floor", line.over_chained, CHAINED_TARGET),
            )
            if ratio is not None and ratio > target
        ]
        if over:
            missed.append(
                f"- context {line.case['context']}, batch {line.case['batch']}: {' and '.join(over)}{_lost(line)}"
            )
    measured = [line for line in found if line.over_floor is not None]
    if not measured:
        return
    if missed:
        yield f"Both targets are met by {len(measured) - len(missed)} of {len(measured)} cases. Missed:\n"
        yield "\n".join(missed) + "\n"
    else:
        yield "Both targets are met by every case.\n"


def _lost(line: Line) -> str:
    floor = _floor_phases(line)
    if floor is None:
        return ""
    prefill, decode = (
        line.engine[f"{phase}_ms"] - least for phase, least in zip(("prefill", "decode"), floor, strict=True)
    )
    host = line.engine["ms"] - line.engine["prefill_ms"] - line.engine["decode_ms"]
    return f"; over the floor: prefill {prefill:+.2f} ms, decode {decode:+.2f} ms, host {host:+.2f} ms"


def _phases(line: Line) -> tuple[str, str]:
    """Prefill and decode of the engine, the floor's in brackets; norms and activations are shared out by tokens."""
    engine = (number(line.engine["prefill_ms"]), number(line.engine["decode_ms"]))
    floor = _floor_phases(line)
    if floor is None:
        return engine
    return f"{engine[0]} ({number(floor[0])})", f"{engine[1]} ({number(floor[1])})"


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
        yield "Most requests a second with a mean latency of at most 100 ms, among the batches above:\n"
        yield from table(
            ("model", "beam", "context", "batch", "requests/s", "the floor's batch", "the floor's requests/s", "ratio"),
            [
                (each.case["model"], each.case["beam"], each.case["context"], each.engine_batch,
                 f"{each.engine_rate:.1f}", each.floor_batch, f"{each.floor_rate:.1f}", f"{each.ratio:.3f}")
                for each in best
            ],
        )  # fmt: skip
        met = sum(each.ratio >= RATE_TARGET for each in best)
        yield f"The target, {RATE_TARGET} of the floor's rate, is met by {met} of {len(best)}.\n"


def _ablation_table(rows: Sequence[Row]) -> Iterator[str]:
    if without := list(ablated(rows)):
        yield f"### What each part is worth\n\n{without[0][1]['of']}; one part off at a time.\n"
        yield from table(
            ("engine without", "ms", "with it", "ratio"),
            [(name, number(row["ms"]), number(whole["ms"]), f"{row['ms'] / whole['ms']:.3f}")
             for name, row, whole in without],
        )  # fmt: skip


def _breakdown_tables(rows: Sequence[Row]) -> Iterator[str]:
    profiled = [row for row in rows if "phases_ms" in row]
    if profiled:
        yield "### Where the time goes\n"
        yield "One profiled batch of each case, ms by kernel family; profiling makes it slower.\n"
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


def _spread(row: Row) -> str:
    return f"**{number(row['ms'])}** ({number(row['min_ms'])} to {number(row['max_ms'])})"


def _card(row: Row) -> str:
    card = row.get("card")
    return f"{card['sm_mhz']:.0f}, {card['watts']:.0f}" if card else ""


def _memory(row: Row) -> str:
    return f"{row['peak_gb']:.1f} ({row['needed_gb']:.1f})" if row["peak_gb"] else ""
