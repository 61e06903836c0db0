"""The page of measured results, from ``benchmarks/results``."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.breakdown import IDLE
from benchmarks.results import RESULTS, Row, find, load
from benchmarks.summary import CHAINED_TARGET, FLOOR_TARGET, RATE_TARGET, Line, ablated, best_rates, lines
from benchmarks.tables import group_name, milliseconds, number, share

PLOTS = Path(__file__).parent / "plots"
OF_OFFLINE_TARGET, TAIL_TARGET = 0.93, 1.3

HEAD = f"""# Performance

<!-- Written by `make docs`; do not edit. -->

Every figure here is a median, measured by the programs in [`benchmarks/`](../benchmarks) and committed as JSON in
[`benchmarks/results/`](../benchmarks/results). `recallstream bench offline`, `online` and `kernels` measure again on
your device, and `make bench-check` compares a new run with the committed one.

**Floors.** A time says little without what it could be. *Floor* is the sum of every matrix product and attention that
no engine can leave out, each timed alone with the best library kernel (cuBLAS; FlashAttention or cuDNN), plus the
traffic of norms and activations at the rate of a large copy. *Chained* is the same products and attentions one after
another in one CUDA graph, so that no timer stands between them and the card heats as it does in an engine; nothing else
is in it. Targets: at most {FLOOR_TARGET} of the floor and {CHAINED_TARGET} of the chained floor.

**Flattened beams** is the chained floor with decode attention as engines do it that make every beam a sequence of its
own: the context is read again for every beam, by the fastest kernel found for that. It has no selection, no norms and
no decoded tokens, so a real engine of that kind is slower. **transformers** is `generate` with `num_beams`,
unconstrained.

Weights are random in the exact shape of the model, requests random and never seen before, and every answer is
constrained to a random catalog. Engine times run from requests in to items out, host work included."""


def performance_page(results: Path = RESULTS) -> str:
    parts, absent = [HEAD], []
    for kind, section in _SECTIONS.items():
        found = sorted(results.glob(f"{kind}*.json"))
        for path in found:
            parts += ["", *section(path.stem, load(path))]
        if not found and kind in _ON_A_DEVICE:
            absent.append(f"`recallstream bench {kind}`")
    if absent:
        parts.insert(1, f"\n**Not recorded yet:** {' and '.join(absent)}, with the targets that they decide.")
    return "\n".join(parts) + "\n"


def _offline(stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    rows = report["rows"]
    found = list(lines(rows))
    models = ", ".join(dict.fromkeys(str(line.case["model"]) for line in found))
    yield f"## The engine: {models}\n"
    yield f"{_where(report)}; catalog of {report['items']:,} items.\n"
    for title, group in groupby(found, key=group_name):
        yield from _case_table(title, list(group))
    yield from _best_table(found)
    yield from (f"![{plot.stem}](plots/{plot.name})\n" for plot in sorted(PLOTS.glob(f"{stem}-*.svg")))
    yield from _ablation_table(rows)
    yield from _breakdown_tables(rows)


def _case_table(title: str, found: Sequence[Line]) -> Iterator[str]:
    yield f"### {title}\n"
    yield from _table(
        ("context", "batch", "engine ms", "floor", "over it", "chained", "over it", "flattened", "transformers",
         "prefill (floor)", "decode (floor)", "requests/s", "SM MHz, W"),
        [
            (
                line.case["context"], line.case["batch"], _spread(line.engine),
                milliseconds(line.floor), share(line.over_floor), milliseconds(line.chained), share(line.over_chained),
                milliseconds(line.flattened), milliseconds(line.transformers),
                *_phases(line), f"{line.engine['requests_per_s']:.1f}", _card(line.engine),
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
                ("floor", line.over_floor, FLOOR_TARGET),
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


def _best_table(found: Sequence[Line]) -> Iterator[str]:
    if best := list(best_rates(found)):
        yield "Most requests a second with a mean latency of at most 100 ms, among the batches above:\n"
        yield from _table(
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
        yield from _table(
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
        yield from _table(
            ("", *families, "sum"),
            [
                (name, *(number(phase.get(part)) for part in families), number(sum(phase.values())))
                for name, phase in phases.items()
            ],
        )


def _online(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## The service: {report['model']}\n"
    yield f"{_where(report)}. Requests through an embedded Kafka broker in the same process; times at the client.\n"
    rows = report["rows"]
    for case in dict.fromkeys(row["case"] for row in rows):
        here = [row for row in rows if row["case"] == case]
        yield f"### {case}\n"
        yield from _table(
            ("", "requests/s", "of offline", "p50 ms", "p99 ms", "p99 / p50"),
            [
                (row["what"], f"{row['requests_per_s']:.2f}", share(row.get("of_offline")), number(row.get("ms")),
                 number(row.get("p99_ms")), share(row.get("p99_over_p50")))
                for row in here
            ],
        )  # fmt: skip
        if (whole := find(here, what="online")) is not None:
            if whole["graph_hits"]:
                hits = (f"{ratio:.1%} of {what}" for what, ratio in whole["graph_hits"].items())
                yield f"From a graph: {', '.join(hits)}.\n"
            rate = _met(whole["of_offline"] >= OF_OFFLINE_TARGET)
            tail = _met(whole["p99_over_p50"] <= TAIL_TARGET)
            yield f"Targets: {OF_OFFLINE_TARGET} of the offline rate {rate}; p99 at most {TAIL_TARGET} of p50 {tail}.\n"


def _kernels(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield "## Kernels\n"
    yield f"{_where(report)}. Microseconds unless said otherwise; every kernel is checked before it is timed.\n"
    rows = report["rows"]
    yield from _table(
        ("checked", "case", "relative error"),
        [(row["kernel"].rpartition(".")[2], row["case"], _plain(row["error"])) for row in rows if "error" in row],
    )
    for kernel in dict.fromkeys(row["kernel"] for row in rows if "error" not in row):
        here = [row for row in rows if row["kernel"] == kernel]
        columns = list(dict.fromkeys(key for row in here for key in row if key not in ("kernel", "case")))
        yield f"### {kernel}\n"
        yield from _table(
            ("case", *(column.removesuffix("_us").replace("_", " ") for column in columns)),
            [(row["case"], *(_plain(row.get(column)) for column in columns)) for row in here],
        )


def _recall(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield "## Recall on MovieLens-1M\n"
    yield f"{report['data']}: {report['users']:,} users, {report['items']:,} items, beam {report['beam_width']}.\n"
    rows = [
        (name, mode.replace("_", " "), score["hr@10"], score["ndcg@10"])
        for mode in ("history_excluded", "history_allowed")
        for name, score in report[mode].items()
    ]
    yield from _table(("", "history", "HR@10", "NDCG@10"), rows)


def _codec(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## The wire protocol on the host\n\nPython {report['python']}, {report['machine']}; µs, medians.\n"
    yield from _table(
        ("case", "µs", "budget", "bytes"),
        [
            (name, case["median_us"], case.get("budget_us", ""), case["bytes"] or "")
            for name, case in report["cases"].items()
        ],
    )


def _catalog(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    note = f" ({report['note']})" if "note" in report else ""
    yield f"## Building a catalog\n\n{report['items']:,} items, {report['machine']}; seconds{note}.\n"
    steps = report["steps"].items()
    yield from _table(
        ("step", "wall", "CPU"), [(name.replace("_", " "), step["wall_s"], step["cpu_s"]) for name, step in steps]
    )
    for name, value in report.items():
        if name.startswith("lookup_"):
            yield f"{name.removesuffix('_ms').replace('_', ' ').capitalize()}: {value} ms.\n"


_SECTIONS = {
    "offline": _offline,
    "online": _online,
    "kernels": _kernels,
    "recall": _recall,
    "codec": _codec,
    "catalog_build": _catalog,
}

_ON_A_DEVICE = ("offline", "online", "kernels")


def _where(report: Mapping[str, Any]) -> str:
    known = [f"{name} {report[name]}" for name in ("torch", "triton", "driver", "commit") if report.get(name)]
    return ", ".join([report["device"], *known])


def _spread(row: Row) -> str:
    return f"**{number(row['ms'])}** ({number(row['min_ms'])} to {number(row['max_ms'])})"


def _card(row: Row) -> str:
    card = row.get("card")
    return f"{card['sm_mhz']:.0f}, {card['watts']:.0f}" if card else ""


def _met(holds: bool) -> str:
    return "met" if holds else "**missed**"


def _plain(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    yield from ("| " + " | ".join(map(str, row)) + " |" for row in rows)
    yield ""
