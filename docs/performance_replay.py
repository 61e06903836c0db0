"""Users who come back on the page of measured results: a replayed day, and members that are restarted while warm."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.results import Row, find
from benchmarks.tables import number
from docs.markdown import table, where


def replay_section(stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    """What sessions make of a day, and what a restart costs."""
    rows = report["rows"]
    least, most = report["tokens"]
    yield f"## A replayed day: {report['model']}\n"
    yield f"{where(report)}. The first {rows[0]['visits']:,} visits of {report['users']:,} users on the busiest day of"
    yield f"MovieLens-1M ({report['day']}), in time order: a visit after every {report['every']} ratings of a user and"
    yield "where he leaves, which sends the ratings since the last one. Histories before the day are made: each user's"
    yield f"own ratings over and over, {least:,} to {most:,} tokens (uniform in their logarithm); on average a visit's"
    yield f"context has {rows[0]['mean_context']:,} tokens. Beam {report['beam']}, a random catalog of"
    yield f"{report['items']:,} items. Requests through an embedded Kafka broker, histories held and copied to Redis.\n"
    yield f"*As fast as it goes*: {report['outstanding']} visits in the air, a user waits for his reply. *In time*: the"
    yield "middle of it goes by at that many visits a second on average, after what was before; latency from when one"
    yield "was due. *Hits*: visits that found a session; the others are first ones, or came after a restart. *Reused*:"
    yield "of all context tokens.\n"
    yield from table(
        ("", "", "visits", "visits/s", "p50 ms", "p99 ms", "hits", "reused", "pool, GB", "sessions, GB", "host, GB"),
        [
            (_what(row), row["arm"], row["visits"], f"{row['requests_per_s']:.1f}", number(row["p50_ms"]),
             number(row["p99_ms"]), f"{row['hits']:.1%}", f"{row['reused']:.1%}", f"{row['pool_high_water_gb']:.1f}",
             f"{row['sessions_gb']:.1f}", f"{row['host_gb']:.1f}")
            for row in rows
        ],
    )  # fmt: skip
    if "note" in report:
        yield f"Of the day: {report['note']}.\n"
    fast = [find(rows, what="as fast as it goes", arm=arm) for arm in ("sessions", "no sessions")]
    if fast[0] is not None and fast[1] is not None:
        times = fast[0]["requests_per_s"] / fast[1]["requests_per_s"]
        yield f"Sessions make it {times:.2f} times as fast. *Pool* is the most that was in use so far, of"
        yield f"{fast[0]['pool_gb']:.0f} GB. The held histories take {fast[0]['history_bytes'] / 1e6:.1f} MB.\n"
    if (again := find(rows, what="restart")) is not None:
        silence, warm, fast_s = again["silence_s"], _seconds(again["warm_s"]), _seconds(again["fast_s"])
        yield f"**After a restart** halfway, by a process that has lost its sessions: {silence:.1f} s without an answer"
        yield "(it leaves the group and joins it, a second of that is the broker's hold on a rebalance; the start of"
        yield f"the engine, {report['engine_start_s']:.0f} s, is not part of it), then {warm} until as much is reused"
        yield f"and {fast_s} until answers come as fast as for the same visits of the run without it (within 5 %, over"
        yield "100 visits).\n"
    yield f"![a replayed day](plots/{stem}.svg)\n"


def warm_restart_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    """What is still answered in time."""
    rows = report["rows"]
    prefills = [row["prefill_tokens_per_s"] for row in rows]
    if report["degrade"]:
        yield f"### The same where `{'`, `'.join(report['degrade'])}` may be given up\n"
        yield f"Commit {report['commit']}; a degraded answer is of a narrower beam or the newest part of the history.\n"
    else:
        yield from _storm(report, prefills)
    yield from table(
        ("", "s", "visits", "in time", "p50 ms", "p99 ms", "longest silence s", "prefill tokens/s", "degraded",
         "need_history", "rejected", "expired"),
        [
            (row["what"], row["seconds"], row["visits"], f"{row['in_time']:.1%}", number(row["p50_ms"]),
             number(row["p99_ms"]), row["longest_silence_s"], f"{row['prefill_tokens_per_s']:,}", row["degraded"],
             row["need_history"], row["rejected"], row["expired"])
            for row in rows
        ],
    )  # fmt: skip


def _storm(report: Mapping[str, Any], prefills: Sequence[int]) -> Iterator[str]:
    least, most = report["items"]
    yield "## Members that are restarted while warm\n"
    yield f"{report['members']} processes with a tiny model on the CPU, real Kafka and Redis, {report['machine']},"
    yield f"commit {report['commit']}. {report['users']} users come back at {report['requests_per_s']:g} visits a"
    yield f"second with 3 new events on top of {least} to {most} held ones, each visit with a deadline of"
    yield f"{report['deadline_s']:g} s. Once all have sessions the processes are restarted one after the other: their"
    yield "users move to the other members, some of them back later, and begin without a session each time. The prompt"
    yield f"tokens to be computed go from {prefills[0]:,} to {max(prefills):,} a second.\n"


def _what(row: Row) -> str:
    return f"{row['what']}, {row['rate']:g}/s" if "rate" in row else str(row["what"])


def _seconds(found: float | None) -> str:
    return "never" if found is None else f"{found:.1f} s"
