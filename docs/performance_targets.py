"""The targets and what was measured against them, at the head of the page of measured results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Row, find
from benchmarks.sessions import FLOOR, SESSION
from benchmarks.sessions import TARGET as COMES_BACK
from benchmarks.summary import (
    CHAINED_TARGET,
    FLOOR_TARGETS,
    FREE_TARGET,
    ONLINE,
    RATE_TARGET,
    TRACED,
    Line,
    best_rates,
    lines,
)
from docs.markdown import table

RATE_MODEL = "qwen3-0.6b"
OF_OFFLINE_TARGET, TAIL_TARGET = 0.93, 1.3
GRAPH_HITS, PADDED, IDLE = 0.99, 0.25, 0.05
MEMORY_FACTOR, MEMORY_GB = 1.1, 1.0
CONTEXT_PART, OWN_SHORT, OWN_LONG, LONG = 0.9, 0.85, 1.0, 5000
STEPS_US = {"1M, width 256, batch 1": 50.0, "1M, width 900, batch 8": 200.0}

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """One measured case. ``holds``: its target is met."""

    case: str
    value: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Target:
    """``worst``: picks the value furthest from the target."""

    what: str
    wanted: str
    values: Sequence[Value]
    lower_is_better: bool = True

    def cells(self) -> tuple[str, str, str, str]:
        pick = max if self.lower_is_better else min
        worst = pick(self.values, key=lambda value: value.value)
        met = sum(value.holds for value in self.values)
        verdict = "met" if met == len(self.values) else f"**missed**: met by {met} of {len(self.values)}"
        return self.what, self.wanted, verdict, f"{worst.value:.3g} ({worst.case})"


def targets_section(reports: Sequence[Report]) -> Iterator[str]:
    found = [target for target in _targets(reports) if target.values]
    if found:
        yield "## Targets\n"
        yield "*Worst*: the measured case that is furthest from its target.\n"
        yield from table(("", "target", "", "worst"), [target.cells() for target in found])


def _targets(reports: Sequence[Report]) -> Iterator[Target]:
    offline = [line for report in reports if report.get("kind") == "offline" for line in lines(report["rows"])]
    rows = {
        kind: [row for report in reports if report.get("kind") == kind for row in report["rows"]]
        for kind in ("offline", "sessions", "online", "kernels", "exactness")
    }
    yield from _of_offline(offline)
    floors = [row for row in rows["sessions"] if row["what"] == f"{SESSION}, {FLOOR}"]
    values = [Value(row["case"], row["of_the_floor"], row["within_target"]) for row in floors]
    yield Target("a user who comes back, over the floor of decoding and of the new tokens", f"≤ {COMES_BACK}", values)
    yield from _of_memory(rows["offline"])
    yield from _of_kernels(rows["kernels"])
    yield from _of_online(rows["online"])
    right = [Value(row["case"], float(row["right"]), row["right"]) for row in rows["exactness"] if "right" in row]
    yield Target("float32 on the device against the float64 oracle", "every answer right", right, lower_is_better=False)


def _of_offline(found: Sequence[Line]) -> Iterator[Target]:
    for precision, most in FLOOR_TARGETS.items():
        here = [line for line in found if line.case["precision"] == precision and line.chained is not None]
        yield _at_most(f"{precision} end to end over the floor", most, here, lambda line: line.over_floor)
        if precision == "bf16":
            what = "bf16 end to end over the chained floor"
            yield _at_most(what, CHAINED_TARGET, here, lambda line: line.over_chained)
    yield _at_most("end to end over the run without a constraint", FREE_TARGET, found, lambda line: line.over_free)
    yield Target(
        "requests/s at a mean latency of 100 ms, over the floor's at its best batch",
        f"≥ {RATE_TARGET}",
        [Value(f"{best.name}, batch {best.engine_batch}", best.ratio, best.ratio >= RATE_TARGET)
         for best in best_rates(found) if best.case["model"] == RATE_MODEL],
        lower_is_better=False,
    )  # fmt: skip


def _at_most(what: str, most: float, found: Sequence[Line], ratio: Any) -> Target:
    values = [(line.case["case"], value) for line in found if (value := ratio(line)) is not None]
    return Target(what, f"≤ {most}", [Value(case, value, value <= most) for case, value in values])


def _of_memory(rows: Sequence[Row]) -> Iterator[Target]:
    values = [
        Value(row["case"], row["peak_gb"], row["peak_gb"] <= MEMORY_FACTOR * row["needed_gb"] + MEMORY_GB)
        for row in rows
        if row.get("tight") and row.get("peak_gb")
    ]
    yield Target("peak memory, GB", f"≤ {MEMORY_FACTOR} of weights, keys and values + {MEMORY_GB:g} GB", values)


def _of_kernels(rows: Sequence[Row]) -> Iterator[Target]:
    attention = [row for row in rows if row["kernel"] == "decode attention"]
    for what, least, ratio, wanted in (
        ("context part", CONTEXT_PART, "context_rate_over_cudnn", lambda _: True),
        ("own tokens included, context 1,000", OWN_SHORT, "rate_over_cudnn", lambda context: context < LONG),
        ("own tokens included, from context 5,000", OWN_LONG, "rate_over_cudnn", lambda context: context >= LONG),
    ):
        values = [
            Value(row["case"], row[ratio], row[ratio] >= least)
            for row in attention
            if ratio in row and wanted(int(row["case"].split("context ")[1].split(",")[0]))
        ]
        yield Target(f"decode attention over cuDNN's rate, {what}", f"≥ {least}", values, lower_is_better=False)
    selection = [row for row in rows if row["kernel"] == "expand and select"]
    slower = []
    for row in selection:
        name, _, size = row["case"].partition(", ")
        free = find(selection, case=f"unconstrained, {size}")
        if free is not None and name != "unconstrained":
            slower.append(Value(row["case"], row["us"] / free["us"], row["us"] <= free["us"]))
    yield Target("selection over the unconstrained one", "≤ 1", slower)
    for case, most in STEPS_US.items():
        found = find(selection, case=case)
        if found is not None:
            yield Target("all selection steps, µs", f"≤ {most:g}", [Value(case, found["us"], found["us"] <= most)])


def _of_online(rows: Sequence[Row]) -> Iterator[Target]:
    whole = [row for row in rows if row["what"] == ONLINE]
    steady = [row for row in whole if row["outstanding"] == 4 and not row.get("mixed")]
    yield Target(
        "requests/s through Kafka over the offline rate",
        f"≥ {OF_OFFLINE_TARGET}",
        [Value(row["case"], row["of_offline"], row["of_offline"] >= OF_OFFLINE_TARGET) for row in steady],
        lower_is_better=False,
    )
    tails = [Value(row["case"], row["p99_over_p50"], row["p99_over_p50"] <= TAIL_TARGET) for row in steady]
    yield Target("p99 over p50 through Kafka", f"≤ {TAIL_TARGET}", tails)
    mixed = [row for row in whole if row.get("mixed")]
    hits = [Value(row["case"], share, share >= GRAPH_HITS) for row in mixed if (share := graph_share(row)) is not None]
    yield Target("mixed load: stages that ran from a graph", f"≥ {GRAPH_HITS}", hits, lower_is_better=False)
    padded = [
        Value(f"{row['case']}, {what}", share, share <= PADDED)
        for row in mixed
        for what, share in row["padded"].items()
    ]
    yield Target("mixed load: padded work", f"≤ {PADDED}", padded)
    idle = [
        Value(row["case"], row["device"]["idle"], row["device"]["idle"] < IDLE)
        for row in rows
        if row["what"] == TRACED and row.get("mixed") and row["device"] and row.get("loaded", True)
    ]
    yield Target("mixed load: device idle", f"< {IDLE}", idle)


def graph_share(row: Row) -> float | None:
    """Of prefills and searches together."""
    counts = row["engine_counts"]
    graphs, eager = (
        sum(counts.get(f"{kind}_{what}", 0) for what in ("prefills", "searches")) for kind in ("graph", "eager")
    )
    return graphs / (graphs + eager) if graphs + eager else None
