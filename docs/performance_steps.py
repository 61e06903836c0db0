"""The section on where the stream path's CPU goes, of the page of measured results."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs.markdown import table

_CLIENTS = ("record", "produce", "reports")
"""What anybody does who reads and writes with this client."""


def request_steps_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    rows = report["rows"]
    yield "### Where the CPU of a request goes\n"
    yield f"Every step by itself in one thread, in runs of 64 requests of {report['request_bytes']} bytes, on the"
    yield f"broker that is built into librdkafka {report['librdkafka']}; Python {report['python']}, commit"
    yield f"{report['commit']}, {report['cpus']} CPUs, load average {report['load_before'][0]:.1f} before.\n"
    yield from table(
        ("thread", "step", "µs", "what"), [(row["case"], row["what"], row["cpu_us"], row["meaning"]) for row in rows]
    )
    threads: dict[str, float] = {}
    for row in rows:
        threads[row["case"]] = threads.get(row["case"], 0.0) + row["cpu_us"]
    parts = ", ".join(f"{thread} {spent:.1f}" for thread, spent in threads.items())
    client = sum(row["cpu_us"] for row in rows if row["what"] in _CLIENTS)
    yield f"By thread: {parts}; together {report['cpu_us']:.1f} µs. Beside each other the three threads take up to a"
    yield "third more, as each finds the caches used by the others and the interpreter's lock changes hands;"
    yield f"librdkafka's own threads come on top. *record*, *produce* and *reports* ({client:.1f} µs) are what any"
    yield "program on this client pays.\n"
    yield "What is left is the interpreter and the memory of the objects of a request. C code reads the"
    yield "request's bytes in 0.5 µs, turns 100 ids into ints in 1.3 and writes the reply in 0.8. Each of the"
    yield "other steps keeps a promise of the [protocol](protocol.md): strict checks, held histories, repeats"
    yield "without the engine, deadlines, turning away in time, exact metrics. 50,000 replies/s of one process"
    yield "are 20 µs a request with the interpreter's lock held, of which the bare client alone holds it for"
    yield "about 11: that would need these steps in a native module, which this package does not have;"
    yield "processes that share a topic's partitions are its way to more.\n"
    yield "Compiling the typed modules (mypyc 2.4), when they took 33 µs by steps, gave 31.0 for 32.5 as they"
    yield "were, and 24.7 with every object of a request made a plain class: msgspec's structs are C already,"
    yield "and it cannot compile them.\n"
