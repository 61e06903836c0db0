"""What exactly-once delivery costs: the service on a no-op engine, on a real Kafka broker, in both modes in one run.

Run ``python -m benchmarks.delivery`` (JDK 17, Maven). Both modes publish the same replies; exactly-once is measured
with the service's retry back-off and with the Kafka client's own of 100 ms, for which a transaction close behind
another may have to wait.
*drain* and *round trip* are those of ``benchmarks.transport``; in a drain one transaction follows another at once.
Rounds alternate; each row is the median of its rounds.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import torch
from rich.console import Console

from benchmarks.card import describe
from benchmarks.results import RESULTS, ReportFile
from benchmarks.transport import drain, medians, request, round_trip, settings
from benchmarks.transport_peers import serve
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import install

CLIENT_BACKOFF_MS = 100
MODES = ("at-least-once", "exactly-once", "exactly-once, client's back-off")


def in_mode(kafka: KafkaSettings, mode: str) -> KafkaSettings:
    """The same topics and group in one of ``MODES``."""
    changes: dict[str, object] = {"delivery": mode.partition(",")[0]}
    if mode == MODES[2]:
        changes["producer_options"] = {"retry.backoff.ms": CLIENT_BACKOFF_MS}
    return kafka.model_copy(update=changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="requests of a drain")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second of a round trip")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round trip")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "delivery.json")
    asked = parser.parse_args()
    console, batch = Console(stderr=True), BatchSettings()
    report = ReportFile(
        asked.out,
        {
            "kind": "delivery",
            **describe(torch.device("cpu")),
            "librdkafka": confluent_kafka.libversion()[0],
            "broker": "Kafka 4.4.0",
            "cpus": os.cpu_count(),
            "load_before": os.getloadavg(),
            "request_bytes": len(request(0)),
            "max_requests": batch.max_requests,
        },
    )

    def drained(kafka: KafkaSettings) -> dict[str, float]:
        found = drain(serve, kafka, batch, asked.count)
        row = {name: found[name] for name in ("replies_per_s", "cpu_us")}
        if kafka.delivery == "exactly-once":
            commits = found["commits_per_s"]
            row |= {"transaction_ms": 1000 / commits, "replies_per_transaction": row["replies_per_s"] / commits}
        return row

    cases: dict[str, Callable[[KafkaSettings], dict[str, float]]] = {
        f"drain, {batch.max_in_flight:,} requests in flight": drained,
        f"{asked.rate:g} requests/s": lambda kafka: round_trip(serve, kafka, batch, asked.rate, asked.seconds),
    }
    installation = install()
    with tempfile.TemporaryDirectory() as home, KafkaCluster(installation, Path(home) / "state") as cluster:
        for case, measure in cases.items():
            rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
            for _ in range(asked.rounds):
                for mode in MODES:
                    rounds[mode].append(measure(in_mode(settings(cluster), mode)))
                    console.print(case, mode, rounds[mode][-1])
            for mode in MODES:
                report.add({"case": case, "what": mode, **medians(rounds[mode])})
    report.note(load_after=os.getloadavg())
    console.print(f"written to {asked.out}")


if __name__ == "__main__":
    main()
