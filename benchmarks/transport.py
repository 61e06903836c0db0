"""The transport alone: the service on a no-op engine, on a real Kafka broker, beside the bare client in the same run.

Run ``python -m benchmarks.transport`` (JDK 17, Maven). *drain*: a topic full of requests is answered while nobody
writes to it: replies a second and CPU of the process, its Kafka client's threads included, after a tenth of them.
*round trip*: an open loop at a steady rate; what the service adds is its round trip minus that of the bare client,
which reads and writes records of the same size. Rounds alternate between the two; each row is the median of its rounds.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import confluent_kafka
import numpy as np
import torch
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from rich.console import Console

from benchmarks.card import describe
from benchmarks.results import RESULTS, ReportFile, Row
from benchmarks.transport_peers import Usage, echo, serve
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from consumer.wire.outgoing import encode_request
from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import install

CPU_US, RATE, ADDED_P50_MS = 30.0, 50_000.0, 3.0
"""Targets: at most, at least, at most."""

_EVENTS = 121
"""With which a request has 1 KB."""
_PATIENCE_S = 120.0
_ASK_S = 0.01
_SETTLE_S = 3.0
"""Of a round trip before the measured time."""

Peer = Callable[[KafkaSettings, BatchSettings, Connection], None]
PEERS: dict[str, Peer] = {"service": serve, "bare client": echo}


def request(number: int) -> bytes:
    return encode_request(f"{number:016d}", {"user_id": f"user-{number}", "history": np.arange(_EVENTS) + number})


@contextmanager
def running(peer: Peer, kafka: KafkaSettings, batch: BatchSettings) -> Iterator[Callable[[], Usage]]:
    """A process of its own, asked for its usage by the call."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=peer, args=(kafka, batch, theirs), daemon=True)
    process.start()
    theirs.close()

    def usage() -> Usage:
        ours.send(None)
        found: Usage = ours.recv()
        return found

    try:
        yield usage
    finally:
        ours.close()
        process.join(_PATIENCE_S)
        process.kill()


def until(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    limit = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError("no progress")
        time.sleep(_ASK_S)


def until_replied(usage: Callable[[], Usage], count: int) -> Usage:
    """The first usage with so many replies."""
    found = usage()

    def reached() -> bool:
        nonlocal found
        found = usage()
        return found.replies >= count

    until(reached)
    return found


def settings(cluster: KafkaCluster) -> KafkaSettings:
    """Fresh topics of one partition, and a group of its own."""
    name = uuid.uuid4().hex[:8]
    topics = {f"{name}.requests": 1, f"{name}.replies": 1, f"{name}.dead-letters": 1}
    cluster.create_topics(topics)
    requests, replies, dead_letters = topics
    return KafkaSettings(
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=name,
        request_topic=requests,
        reply_topic=replies,
        dead_letter_topic=dead_letters,
        session_timeout_ms=10_000,
    )


def produce(producer: Producer, kafka: KafkaSettings, number: int) -> None:
    while True:
        try:
            producer.produce(
                kafka.request_topic,
                value=request(number),
                key=f"user-{number}".encode(),
                headers=[("correlation-id", number.to_bytes(16, "big"))],
            )
            return
        except BufferError:
            producer.poll(0.1)


def drain(peer: Peer, kafka: KafkaSettings, batch: BatchSettings, count: int) -> dict[str, float]:
    """Replies a second and CPU microseconds a request over the last nine tenths of ``count`` requests."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    for number in range(count):
        produce(producer, kafka, number)
    producer.flush(_PATIENCE_S)
    with running(peer, kafka, batch) as usage:
        begin = until_replied(usage, count // 10)
        end = until_replied(usage, count)
    answered = end.replies - begin.replies
    if answered < count // 2:
        raise ValueError(f"{count} requests are too few to be timed: more than half were answered between two looks")
    threads = {name: (spent - begin.threads[name]) / answered * 1e6 for name, spent in end.threads.items()}
    cpu_us = (end.cpu - begin.cpu) / answered * 1e6
    return {
        "replies_per_s": answered / (end.at - begin.at),
        "cpu_us": cpu_us,
        **{f"{name}_us": spent for name, spent in threads.items()},
        "client_us": cpu_us - sum(threads.values()),
        "commits_per_s": (end.commits - begin.commits) / (end.at - begin.at),
    }


def round_trip(peer: Peer, kafka: KafkaSettings, batch: BatchSettings, rate: float, seconds: float) -> dict[str, float]:
    """Milliseconds from produce to the reply in an open loop."""
    sent: dict[bytes, float] = {}
    times: list[float] = []
    connection = kafka.connection()
    producer = Producer({**connection, "linger.ms": 0})
    consumer = Consumer({**connection, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(kafka.reply_topic, 0, OFFSET_END)])
    consumer.poll(1.0)

    def receive(wait: float) -> None:
        message = consumer.poll(wait)
        if message is not None and message.error() is None:
            headers: dict[str, Any] = dict(message.headers() or ())
            times.append((time.perf_counter() - sent.pop(headers["correlation-id"])) * 1e3)

    count = int(rate * (_SETTLE_S + seconds))
    with running(peer, kafka, batch) as usage:
        sent[(0).to_bytes(16, "big")] = time.perf_counter()
        produce(producer, kafka, 0)
        producer.flush(_PATIENCE_S)
        until(lambda: usage().replies > 0)
        begin = time.perf_counter()
        for number in range(1, count + 1):
            while (left := begin + number / rate - time.perf_counter()) > 0:
                receive(left)
            sent[number.to_bytes(16, "big")] = time.perf_counter()
            produce(producer, kafka, number)
            producer.poll(0)
        limit = time.monotonic() + _PATIENCE_S
        while sent and time.monotonic() < limit:
            receive(0.1)
    consumer.close()
    producer.flush(_PATIENCE_S)
    if sent:
        raise TimeoutError(f"{len(sent)} requests without a reply")
    cuts = quantiles(times[int(rate * _SETTLE_S) :], n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def medians(rounds: list[dict[str, float]]) -> Row:
    return {
        **{name: round(median(each[name] for each in rounds), 3) for name in rounds[0]},
        "rounds": [{name: round(value, 3) for name, value in each.items()} for each in rounds],
    }


def targets(rows: list[Row]) -> dict[str, Any]:
    """The service's figures beside the targets."""
    service, bare = (next(row for row in rows if row["case"] == "drain" and row["what"] == what) for what in PEERS)
    slow, quick = (next(row for row in rows if row["case"] != "drain" and row["what"] == what) for what in PEERS)
    return {
        "cpu_us": service["cpu_us"],
        "cpu_us_above_bare": round(service["cpu_us"] - bare["cpu_us"], 3),
        "replies_per_s": service["replies_per_s"],
        "added_p50_ms": round(slow["p50_ms"] - quick["p50_ms"], 3),
        "added_p99_ms": round(slow["p99_ms"] - quick["p99_ms"], 3),
        "targets": {"cpu_us": CPU_US, "replies_per_s": RATE, "added_p50_ms": ADDED_P50_MS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30_000, help="requests of a drain")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second of a round trip")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round trip")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-requests", type=int, default=BatchSettings().max_requests, help="of a batch")
    parser.add_argument("--out", type=Path, default=RESULTS / "transport.json")
    asked = parser.parse_args()
    console, batch = Console(stderr=True), BatchSettings(max_requests=asked.max_requests)
    head = {**describe(torch.device("cpu")), "librdkafka": confluent_kafka.libversion()[0], "broker": "Kafka 4.4.0"}
    report = ReportFile(
        asked.out,
        {
            "kind": "transport",
            **head,
            "cpus": os.cpu_count(),
            "load_before": os.getloadavg(),
            "request_bytes": len(request(0)),
            "max_requests": batch.max_requests,
            "note": "broker, load generator and service share the machine's CPUs, with whatever else load_before shows",
        },
    )
    installation = install()
    with tempfile.TemporaryDirectory() as home, KafkaCluster(installation, Path(home) / "state") as cluster:
        cases: dict[str, Callable[[Peer], dict[str, float]]] = {
            "drain": lambda peer: drain(peer, settings(cluster), batch, asked.count),
            f"{asked.rate:g} requests/s": lambda peer: round_trip(
                peer, settings(cluster), batch, asked.rate, asked.seconds
            ),
        }
        for case, measure in cases.items():
            rounds: dict[str, list[dict[str, float]]] = {what: [] for what in PEERS}
            for _ in range(asked.rounds):
                for what, peer in PEERS.items():
                    rounds[what].append(measure(peer))
                    console.print(case, what, rounds[what][-1])
            for what in PEERS:
                report.add({"case": case, "what": what, **medians(rounds[what])})
    report.note(load_after=os.getloadavg(), **targets(report.rows))
    console.print(f"written to {asked.out}")


if __name__ == "__main__":
    main()
