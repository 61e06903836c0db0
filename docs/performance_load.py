"""Overload on the page of measured results."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.results import find
from docs.markdown import met, table, where


def overload_section(stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    """A table a pattern and ladder, and whether the targets hold."""
    rows = report["rows"]
    least, most = report["contexts"]
    yield f"## More than can be done: {report['model']}\n\n{where(report)}. Contexts of {least} to {most} tokens, beam"
    yield f"{report['beam']}, {report['items']:,} items; a deadline {report['deadline_ms']:.0f} ms after the moment at"
    yield "which a request was meant to be sent, from which its latency counts, too. *Load* is in units of"
    if (full := find(rows, what="capacity")) is not None:
        yield f"{full['requests_per_s']:.1f} requests/s, what the service does with {full['outstanding']} in the air."
    yield "*Goodput*: answers a second that the client has before the deadline. *Possible*: those of a server that does"
    yield "the capacity or the highest goodput one by one and begins none in vain.\n"
    yield f"![load, goodput and latency](plots/{stem}.svg)\n"
    for verdict in (row for row in rows if row["what"] == "verdict"):
        same = {"pattern": verdict["pattern"], "ladder": verdict["ladder"]}
        ladder = f"`load.degrade` = {', '.join(verdict['ladder'])}" if verdict["ladder"] else "nothing is given up"
        arrivals = "at random" if verdict["pattern"] == "poisson" else "bursts of ten times the rate"
        yield f"**{arrivals.capitalize()}, {ladder}**\n"
        loads = [row for row in rows if row["what"] == "load" and all(row[key] == same[key] for key in same)]
        yield from table(
            ("load", "offered/s", "possible/s", "goodput/s", "with less", "rejected", "expired", "late", "p50 ms",
             "p99 ms", "queue"),
            [
                (f"{row['times']:g}", f"{row['offered_per_s']:.1f}", f"{most:.1f}", f"{row['goodput_per_s']:.1f}",
                 f"{row['degraded']:.1%}", row["rejected"], row["expired"], row["late"], f"{row['p50_ms']:.1f}",
                 f"{row['p99_ms']:.1f}", row["longest_queue"])
                for row, most in zip(loads, verdict["possible_per_s"], strict=True)
            ],
        )  # fmt: skip
        yield (
            f"Goodput is at least {verdict['of_peak']:.1%} of its peak, or of what is possible below it (target 90 %: "
            f"{met(verdict['holds'])}); p99 under the deadline {met(verdict['latency_holds'])}.\n"
        )
