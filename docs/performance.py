"""The page of measured results, from ``benchmarks/results``."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, Row, find, load
from benchmarks.summary import CHAINED_TARGET, FLOOR_TARGETS, P99_MS, TRACED, best_load
from benchmarks.tables import number, share
from docs.markdown import met, plain, table, where
from docs.performance_catalog import filters_section, freshness_section, scale_section, swaps_section
from docs.performance_kernels import kernels_section, prompt_splits_section
from docs.performance_load import overload_section
from docs.performance_offline import offline_section
from docs.performance_quality import products_section, quality_section
from docs.performance_replay import replay_section, warm_restart_section
from docs.performance_returning import sessions_section
from docs.performance_steps import request_steps_section
from docs.performance_targets import OF_OFFLINE_TARGET, TAIL_TARGET, graph_share, targets_section

NOTES = "notes.md"
"""Beside the results: what is to be said about them."""

HEAD = f"""# Performance

<!-- Written by `make docs`; do not edit. -->

Every figure here is a median, measured by the programs in [`benchmarks/`](../benchmarks) and committed as JSON in
[`benchmarks/results/`](../benchmarks/results). `recallstream bench offline`, `online` and `kernels` measure again on
your device, and `make bench-check` compares a new run with the committed one.

**Floors.** A time says little without what it could be. *Floor* is the sum of every matrix product and attention that
no engine can leave out, each timed alone with the best library kernel (cuBLAS; FlashAttention or cuDNN), plus the
traffic of norms and activations at the rate of a large copy. *Chained* is the same products and attentions one after
another in one CUDA graph, so that no timer stands between them and the card heats as it does in an engine; nothing else
is in it. Targets: at most {FLOOR_TARGETS["bf16"]} of the floor ({FLOOR_TARGETS["fp8"]} with FP8) and {CHAINED_TARGET}
of the chained floor.

**Flattened beams** is the chained floor with decode attention as engines do it that make every beam a sequence of its
own: the context is read again for every beam, by the fastest kernel found for that. It has no selection, no norms and
no decoded tokens, so a real engine of that kind is slower. **transformers** is `generate` with `num_beams`,
unconstrained.

Weights are random in the exact shape of the model, requests random and never seen before, and every answer is
constrained to a random catalog. Engine times run from requests in to items out, host work included. *Two in flight*:
from one batch's answers to the next one's, with two batches in the engine. The *cost of the constraint* is against the
same engine with a selection that lets every code follow every other, timed right beside it."""


def performance_page(results: Path = RESULTS) -> str:
    reports = {path.stem: load(path) for path in sorted(results.glob("*.json"))}
    parts, absent = [HEAD, "", *targets_section(list(reports.values()))], []
    if (results / NOTES).exists():
        parts.append((results / NOTES).read_text())
    for kind, section in _SECTIONS.items():
        found = [stem for stem in reports if stem.startswith(kind)]
        for stem in found:
            parts += ["", *section(stem, reports[stem])]
        if not found and kind in _ON_A_DEVICE:
            absent.append("`benchmarks.exactness`" if kind == "exactness" else f"`recallstream bench {kind}`")
    if absent:
        parts.insert(1, f"\n**Not recorded yet:** {' and '.join(absent)}, with the targets that they decide.")
    return "\n".join(parts) + "\n"


def _online(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## The service: {report['model']}\n"
    yield f"{where(report)}. Requests through an embedded Kafka broker in the service's process; times at the client.\n"
    rows = report["rows"]
    for case in dict.fromkeys(row["case"] for row in rows):
        here = [row for row in rows if row["case"] == case]
        yield f"### {case}\n"
        yield from table(
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
                yield f"From a graph: {', '.join(hits)}; {graph_share(whole) or 0:.1%} of both.\n"
            if whole["padded"]:
                padding = (f"{ratio:.1%} of {what.replace('_', ' ')}" for what, ratio in whole["padded"].items())
                yield f"Padding: {', '.join(padding)}.\n"
            if whole["engine_counts"]:
                yield f"Graphs captured while it served: {whole['engine_counts'].get('graphs', 0):.0f}.\n"
            if "note" in whole:
                yield f"Not all was measured: {whole['note']}.\n"
            if whole["outstanding"] == 4 and not whole["mixed"]:
                rate = met(whole["of_offline"] >= OF_OFFLINE_TARGET)
                tail = met(whole["p99_over_p50"] <= TAIL_TARGET)
                yield f"Targets: {OF_OFFLINE_TARGET} of the offline rate {rate}; p99 ≤ {TAIL_TARGET} of p50 {tail}.\n"
        if (profiled := find(here, what=TRACED)) is not None and profiled["device"]:
            device = profiled["device"]
            yield (
                f"In the profiled round of {device['seconds']:.2f} s the device was idle {device['idle']:.1%} of the "
                f"time; both streams ran at once {device['streams_side_by_side']:.1%} of it.\n"
            )
    if (best := best_load(rows)) is not None:
        rate = f"{best['requests_per_s']:.1f} requests/s"
        yield f"Most requests a second with a p99 of at most {P99_MS:.0f} ms: {rate}, at {best['case']}.\n"


def _exactness(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield "## Exactness on the device\n"
    yield f"{where(report)}. `benchmarks/exactness.py` says what each of these is; scores are log-probabilities.\n"
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in report["rows"]:
        groups.setdefault(tuple(key for key in row if key not in ("what", "case", "note")), []).append(row)
    for columns, rows in groups.items():
        yield from table(
            ("", "case", *(column.replace("_", " ") for column in columns)),
            [(row["what"], _noted(row), *(plain(row[column]) for column in columns)) for row in rows],
        )


def _noted(row: Row) -> str:
    return f"{row['case']} ({row['note']})" if "note" in row else str(row["case"])


def _recall(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield "## Recall on MovieLens-1M\n"
    yield f"{report['data']}: {report['users']:,} users, {report['items']:,} items, beam {report['beam_width']}.\n"
    rows = [
        (name, mode.replace("_", " "), score["hr@10"], score["ndcg@10"])
        for mode in ("history_excluded", "history_allowed")
        for name, score in report[mode].items()
    ]
    yield from table(("", "history", "HR@10", "NDCG@10"), rows)


def _codec(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## The wire protocol on the host\n\nPython {report['python']}, {report['machine']}; µs, medians.\n"
    yield from table(
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
    yield from table(
        ("step", "wall", "CPU"), [(name.replace("_", " "), step["wall_s"], step["cpu_s"]) for name, step in steps]
    )
    for name, value in report.items():
        if name.startswith("lookup_"):
            yield f"{name.removesuffix('_ms').replace('_', ' ').capitalize()}: {value} ms.\n"


def _transport(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield "## The transport alone\n"
    yield f"{report['broker']}, confluent-kafka {report['confluent-kafka']}, librdkafka {report['librdkafka']}, Python"
    yield f"{report['python']}, commit {report['commit']}. One process with a no-op engine, requests of"
    yield f"{report['request_bytes']} bytes, {report['cpus']} CPUs that it shares with the broker, the load generator"
    yield f"and other work: load averages {_loads(report['load_before'])} before, {_loads(report['load_after'])} after."
    yield "The bare client reads, writes and commits records of the same size and does nothing else.\n"
    names = {"replies_per_s": "replies/s", "cpu_us": "CPU µs/request", "p50_ms": "p50 ms", "p99_ms": "p99 ms"}
    rows = [(row["case"], row["what"], *(_figure(row.get(name)) for name in names)) for row in report["rows"]]
    yield from table(("", "", *names.values()), rows)
    yield _threads(report["rows"][0])
    wanted = report["targets"]
    cpu = f"at most {wanted['cpu_us']:g} µs of CPU {met(report['cpu_us'] <= wanted['cpu_us'])}"
    rate = f"{wanted['replies_per_s']:,.0f} replies/s {met(report['replies_per_s'] >= wanted['replies_per_s'])}"
    added = f"at most {wanted['added_p50_ms']:g} ms added p50 {met(report['added_p50_ms'] <= wanted['added_p50_ms'])}"
    yield f"Targets: {cpu}; {rate}; {added} ({report['added_p50_ms']:.2f} ms; p99 {report['added_p99_ms']:+.2f} ms).\n"


def _delivery(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield "## What exactly-once delivery costs\n"
    yield f"{report['broker']}, librdkafka {report['librdkafka']}, Python {report['python']}, commit"
    yield f"{report['commit']}. One process with a no-op engine, requests of {report['request_bytes']} bytes, batches"
    yield f"of at most {report['max_requests']}, {report['cpus']} CPUs that it shares with the broker, the load"
    yield f"generator and other work: load averages {_loads(report['load_before'])} before,"
    yield f"{_loads(report['load_after'])} after."
    yield "In a drain one transaction follows another, and each takes all answers that the one before it left waiting."
    yield "The client's own retry back-off is 100 ms, the service sets 2 ms.\n"
    names = {
        "replies_per_s": "replies/s",
        "cpu_us": "CPU µs/request",
        "transaction_ms": "ms/transaction",
        "replies_per_transaction": "replies/transaction",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
    }
    rows = [(row["case"], row["what"], *(_figure(row.get(name)) for name in names)) for row in report["rows"]]
    yield from table(("", "", *names.values()), rows)


def _threads(row: Mapping[str, Any]) -> str:
    """Where the service's CPU goes."""
    parts = ", ".join(f"{name} {row[name + '_us']:.1f}" for name in ("intake", "device", "replies", "client"))
    return f"Of the service's {row['cpu_us']:.1f} µs a request, by thread: {parts} (librdkafka's own threads).\n"


def _figure(value: float | None) -> str:
    return plain(value) if value is None or value < 1000 else f"{value:,.0f}"


def _loads(loads: list[float]) -> str:
    return " / ".join(f"{load:.1f}" for load in loads)


_SECTIONS = {
    "offline": offline_section,
    "online": _online,
    "replay": replay_section,
    "warm_restart": warm_restart_section,
    "overload": overload_section,
    "sessions": sessions_section,
    "exactness": _exactness,
    "kernels": kernels_section,
    "prompt_splits": prompt_splits_section,
    "fp8_products": products_section,
    "quality": quality_section,
    "recall": _recall,
    "codec": _codec,
    "transport": _transport,
    "request_steps": request_steps_section,
    "delivery": _delivery,
    "catalog_build": _catalog,
    "catalog_scale": scale_section,
    "swaps": swaps_section,
    "freshness": freshness_section,
    "filters": filters_section,
}

_ON_A_DEVICE = ("offline", "online", "exactness", "kernels")
