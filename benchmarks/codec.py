"""What the wire protocol costs on the host: decode and validate a request, encode a reply.

Run ``python -m benchmarks.codec``; prints JSON: the median microseconds of each case, its bytes, and the budget where
the project sets one.
"""

import argparse
import json
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import msgpack
import numpy as np

from consumer.wire.errors import Codec
from consumer.wire.outgoing import RequestOptions, encode_request
from consumer.wire.reply import decode_reply, encode_error, encode_reply
from consumer.wire.request import decode
from consumer.wire.resolve import Resolver
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.request import RecallResult

LIMITS = WireLimits()
BUDGET_US = {"decode 5000 events, binary": 100.0, "encode 100 items, msgpack": 20.0}


def request(events: int, codec: Codec = "msgpack", strings: bool = False) -> bytes:
    ids = np.random.default_rng(7).integers(1, 10**7, events)
    options: RequestOptions = {
        "user_id": "user-184467",
        "history": [f"item-{item}" for item in ids] if strings else ids,
        "top_k": 100,
        "beam": {"width": 256},
        "exclude_history": True,
        "filter": {"any": ["video", "live"], "none": ["adult"]},
        "labels": {"experiment": "b", "channel": "home"},
    }
    return encode_request("0123456789abcdef", options, codec)


def as_list(value: bytes) -> bytes:
    """The same request with its history as an array of ints."""
    fields = msgpack.unpackb(value)
    fields["history"] = np.frombuffer(fields["history"], "<i8").tolist()
    packed: bytes = msgpack.packb(fields)
    return packed


def result(items: int) -> RecallResult:
    rng = np.random.default_rng(7)
    return RecallResult(
        items=rng.integers(1, 10**7, items),
        scores=-rng.random(items, np.float32),
        model="demo-1",
        catalog="2024-06-07T12:00:00Z",
        beam_widths=(256, 256, 256),
        exhausted=False,
        context_tokens=15_003,
        prefill_ms=6.25,
        decode_ms=3.5,
        sids=rng.integers(0, 8192, (items, 3), np.int32),
        fields={"title": [f"A title of usual length, number {n}" for n in range(items)]},
    )


def microseconds(call: Callable[[], object], repeats: int) -> float:
    """Median of ``repeats`` calls, each timed alone: other work on the machine moves it little."""
    times = []
    for _ in range(repeats):
        begin = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - begin)
    return median(times) / 1000


def cases() -> dict[str, tuple[Callable[[], object], int]]:
    """Name of the case to what is timed and the size of its record in bytes."""
    timed: dict[str, tuple[Callable[[], object], int]] = {}

    def decoding(name: str, value: bytes) -> None:
        timed[f"decode {name}"] = (lambda: decode(value, key=b"user-184467", limits=LIMITS), len(value))

    for events in (0, 50, 500, 5000):
        decoding(f"{events} events, binary", request(events))
    decoding("5000 events, array", as_list(request(5000)))
    decoding("5000 events, array of strings", request(5000, strings=True))
    decoding("5000 events, JSON", request(5000, "json"))

    for codec in ("msgpack", "json"):
        wire, name = decode(request(50, codec), key=None, limits=LIMITS), "JSON" if codec == "json" else codec
        full = result(100)
        bare = RecallResult(full.items, full.scores, full.model, full.catalog, full.beam_widths, full.exhausted)
        for what, answer in ((f"100 items, {name}", bare), (f"100 items with SIDs and titles, {name}", full)):
            size = len(encode_reply(wire, answer, queue_ms=1.0, total_ms=12.0))
            timed[f"encode {what}"] = (
                lambda wire=wire, answer=answer: encode_reply(wire, answer, queue_ms=1.0, total_ms=12.0),  # type: ignore[misc]  # bound now
                size,
            )
    wire = decode(request(50), key=None, limits=LIMITS)
    resolver = Resolver(RecallDefaults(), 3)
    timed["resolve defaults"] = (lambda: resolver.resolve(wire), 0)
    failure = encode_error(wire, "expired", "the deadline passed in the queue")
    timed["encode error"] = (lambda: encode_error(wire, "expired", "the deadline passed in the queue"), len(failure))
    reply = encode_reply(wire, result(100), queue_ms=1.0, total_ms=12.0)
    timed["client: decode 100 items with SIDs and titles"] = (lambda: decode_reply(reply), len(reply))
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="calls of which the median is taken")
    repeats = parser.parse_args().repeats
    report = {
        name: {
            "median_us": round(microseconds(call, repeats), 2),
            "bytes": size,
            **({"budget_us": BUDGET_US[name]} if name in BUDGET_US else {}),
        }
        for name, (call, size) in cases().items()
    }
    print(json.dumps({"python": platform.python_version(), "machine": platform.machine(), "cases": report}, indent=2))


if __name__ == "__main__":
    main()
