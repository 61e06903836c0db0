"""The live catalog on the page of measured results."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs.markdown import met, table, where

BUILD_S, BLOB_BYTES, FRESH_MS, LOOKUP_MS = 30.0, 40.0, 1_000.0, 0.3
SWAP_P99 = 1.2
LARGE = 10_000_000


def scale_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Catalogs from 10,000 to 10,000,000 items\n\n{where(report)}. Three levels of 8,192 codes, int64 ids,"
    yield "two of 16 tags an item; seconds. *Build*: a Parquet table into a file. *Publish*: into Redis on the same"
    yield "host, read back and verified. *Active*: from there until an instance serves it: fetched, verified, indexed,"
    yield "on the device. The floors move and hash the same bytes and do nothing else."
    yield f"{report['note'].capitalize()}.\n" if "note" in report else ""
    rows = sorted(report["rows"], key=lambda row: (row["strings"], row["items"], row["case"]))
    yield from table(
        ("", "build", "peak GB", "publish", "floor", "active", "floor", "activate µs", "5,000 ids ms"),
        [
            (row["case"], f"{row['build_s']:.2f}", _gigabytes(row.get("build_peak_bytes")),
             f"{row['publish_s']:.3f}", f"{row['publish_floor_s']:.3f}", f"{row['active_s']:.3f}",
             f"{row['active_floor_s']:.3f}", f"{row['activate_us']:.0f}",
             f"{row['lookup_ms']:.2f}")
            for row in rows
        ],
    )  # fmt: skip
    yield from table(
        ("bytes an item", "file", "device", "host"),
        [
            (row["case"], *(f"{row[f'{part}_bytes_per_item']:.1f}" for part in ("blob", "device", "host")))
            for row in rows
        ],
    )
    yield "Activating swaps a reference: a batch waits for nothing else.\n"
    large = [row for row in rows if row["items"] == LARGE and not row["strings"]]
    if large:
        tries = " and ".join(f"{row['trie_ms']:.1f} ms ({row['shape']})" for row in large)
        yield f"The trie of ten million items is made on the device in {tries}.\n"
        yield "Targets at ten million items: " + "; ".join(
            f"{name} {met(max(row[key] for row in large) <= limit)}"
            for name, key, limit in (
                (f"build in {BUILD_S:.0f} s", "build_s", BUILD_S),
                (f"at most {BLOB_BYTES:.0f} bytes an item", "blob_bytes_per_item", BLOB_BYTES),
                (f"5,000 int64 ids in {LOOKUP_MS} ms", "lookup_ms", LOOKUP_MS),
            )
        ) + ".\n"  # fmt: skip
    if slow := [row["lookup_ms"] for row in rows if row["strings"]]:
        yield f"Look-ups of string ids have the same target: {met(max(slow) <= LOOKUP_MS)} ({max(slow):.2f} ms).\n"


def swaps_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Swaps under load\n\n{where(report)}. {report['model']}, beam {report['beam']}, batches of up to"
    yield f"{report['batch']}; the serving loop without Kafka, requests at random moments. At first and at last the"
    yield "pointer stays; in between it moves to another of six versions, which gives the items other SIDs, is fetched"
    yield "from Redis, verified and staged beside the load. Every answer is checked: its items have the SIDs that it"
    yield "names in the version that it names, and are those that the engine gives for it without any load.\n"
    names = {"quiet_before": "before", "swaps": "swaps", "quiet_after": "after"}
    for row in report["rows"]:
        yield f"{row['case']}:\n"
        yield from table(
            ("", "answered", "wrong", "exactly the version's answer", "versions", "requests/s", "p50 ms", "p99 ms"),
            [
                (said, f"{phase['answered']:,} of {phase['asked']:,}", sum(phase["wrong"].values()),
                 f"{phase['exact_share']:.2%}", phase["versions"], f"{phase['requests_per_s']:.0f}",
                 f"{phase['ms']:.1f}", f"{phase['p99_ms']:.1f}")
                for phase, said in ((row[name], said) for name, said in names.items())
            ],
        )  # fmt: skip
        yield f"The pointer moved {row['pointer_moves']} times, {row['activated']} versions were taken up meanwhile,"
        yield f"{sum(row['refused'].values())} refused. {row['capacity_per_s']:.0f} requests a second can be done. The"
        yield f"p99 is {row['p99_over_quiet']:.2f} of that of the quiet stretches (target {SWAP_P99}:"
        yield f"{met(row['p99_over_quiet'] <= SWAP_P99)}).\n"


def freshness_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Freshness while serving\n\n{where(report)}. One process serves batch after batch, another publishes"
    yield "deltas; milliseconds from the moment at which the publish returned to an answer that holds the added item,"
    yield "or that does not hold the withdrawn one any more. In the middle a helper process writes the catalog out in"
    yield "full.\n"
    names = {
        "added": "added item recalled", "withdrawn": "withdrawn item gone", "publish": "the publish itself",
        "batch_before": "a batch, before the first delta", "batch_during": "a batch, during the deltas",
    }  # fmt: skip
    for row in report["rows"]:
        yield f"{row['case']}; {row['deltas']} deltas; {row['model']}, batches of {row['batch']}:\n"
        yield from table(
            ("", "median ms", "p99 ms", "most ms"),
            [
                (said, *(f"{row[f'{name}{part}_ms']:.1f}" for part in ("", "_p99", "_max")))
                for name, said in names.items()
            ],
        )
        yield f"Target: within a second {met(max(row['added_max_ms'], row['withdrawn_max_ms']) <= FRESH_MS)}.\n"
    if "note" in report:
        yield f"{report['note']}\n"


def filters_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Filters and exclusions\n\n{where(report)}. {report['items']:,} items, {report['model']}, beam"
    yield f"{report['beam']}, one request at a time, from request in to items out; milliseconds. *Fresh*: no filter"
    yield "that selects the same items was seen before. The 16 common tags are held by a sixteenth of the items each,"
    yield "the rare ones by a thousand items.\n"
    rows = [row for row in report["rows"] if row["what"] == "request"]
    exclusions = list(dict.fromkeys(row["excluded"] for row in rows))
    times = {(row["filter"], row["excluded"]): row["ms"] for row in rows}
    yield from table(
        ("filter", *(f"{excluded:,} excluded" for excluded in exclusions)),
        [
            (name, *(f"{times[name, excluded]:.2f}" for excluded in exclusions if (name, excluded) in times))
            for name in dict.fromkeys(row["filter"] for row in rows)
        ],
    )
    counted = ", ".join(f"{row['filter']} {row['ms']:.2f}" for row in report["rows"] if row["what"] == "count")
    yield f"To count the live items of a fresh filter alone: {counted} ms.\n"


def _gigabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e9:.2f}"
