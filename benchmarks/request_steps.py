"""Where the CPU of a request goes: every step of the stream path by itself, in one thread, on a no-op engine.

Run ``python -m benchmarks.request_steps``. Requests go through in runs of 64, as the intake reads them; the client is
the real one, its broker the mock that is built into it. CPU of this thread, microseconds a request, medians of the
rounds.
In the service three threads do this beside each other and 1,024 requests are under way: see ``transport.py``.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import confluent_kafka
import torch
from confluent_kafka import Message
from rich.console import Console

from benchmarks.card import describe
from benchmarks.results import RESULTS, ReportFile
from benchmarks.transport import request
from benchmarks.transport_peers import CATALOG, TOP_K, NoOpEngine
from consumer.histories.items import Cap
from consumer.histories.settings import HistorySettings
from consumer.service import garbage
from consumer.service.metrics import Metrics
from consumer.service.observer import MetricsObserver
from consumer.serving.bad_records import BadRecordLimit
from consumer.serving.batch import Batch
from consumer.serving.batch_queue import BatchQueue
from consumer.serving.deadlines import Moment
from consumer.serving.errands import Errands
from consumer.serving.histories import Histories
from consumer.serving.in_flight import InFlight, Outcome
from consumer.serving.load_settings import LoadSettings
from consumer.serving.offsets import Ownership
from consumer.serving.reader import RequestReader
from consumer.serving.repeats import RepeatCache, identity_of
from consumer.serving.settings import BatchSettings
from consumer.serving.writer import ReplyWriter, Sent
from consumer.stream.mock_cluster import MockCluster
from consumer.stream.partition import partition_of
from consumer.stream.producer import ReplyProducer
from consumer.stream.records import records_of
from consumer.stream.settings import KafkaSettings
from consumer.wire.headers import RequestHeaders
from consumer.wire.request import RequestDecoder
from consumer.wire.settings import RecallDefaults, WireLimits

_RUN = 64
_HOUR_MS = 3_600_000
_REPORTS_S = 5.0

STEPS = {
    "record": ("intake", "the client's message as a record: place, time, key, value, headers"),
    "offset": ("intake", "its offset, from delivery to completion"),
    "decode": ("intake", "value and headers: every field checked, ids to an array"),
    "identity": ("intake", "whether it was answered before: 128 bits of its bytes"),
    "request": ("intake", "deadline, defaults, validation, the objects of a request in flight"),
    "history": ("intake", "its user's history, held as it came"),
    "queue": ("intake", "its work, its rank, its deadline in the queue"),
    "batch": ("device", "a batch of 16: its composition, what is learned from it"),
    "encode": ("replies", "the reply: 100 items and scores"),
    "produce": ("replies", "headers, and the reply handed to the client"),
    "reports": ("replies", "the client's report of each delivery"),
    "count": ("replies", "metrics, the reply kept for repeats"),
}
"""Thread and meaning."""

T = TypeVar("T")


class Clock:
    """CPU seconds of this thread, by step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __call__(self, step: str, call: Callable[[], T]) -> T:
        begin = time.thread_time()
        came = call()
        self.seconds[step] += time.thread_time() - begin
        return came


class Parts:
    """One service's parts, without its threads."""

    def __init__(self, kafka: KafkaSettings) -> None:
        batch, limits, clock = BatchSettings(), WireLimits(), time.monotonic
        defaults = RecallDefaults(top_k=TOP_K, width=TOP_K, deadline_ms=_HOUR_MS, max_deadline_ms=_HOUR_MS)
        engine, self._observer = NoOpEngine(), MetricsObserver(Metrics())
        repeats = RepeatCache(batch, lambda: CATALOG, clock)
        self._decoder = RequestDecoder(limits)
        self._reader = RequestReader(engine, kafka, limits, defaults, repeats, LoadSettings())
        cap = Cap(engine.spec.max_history_items, engine.spec.history_drop)
        self._histories = Histories(
            HistorySettings(),
            cap,
            None,
            self._reader,
            lambda _: None,
            lambda _: None,
            lambda _: None,
            lambda _: None,
            lambda _: None,
            clock,
        )
        self._queue = BatchQueue(batch, clock, lambda _: None, Errands())
        self._owned = Ownership(partition_of(kafka.request_topic, 0), 1, 0)
        self._writer = ReplyWriter(kafka, self._observer, clock, BadRecordLimit(batch), repeats)
        self._producer: ReplyProducer[Sent] = ReplyProducer(kafka, self._observer_error)
        self._engine = engine

    def run(self, messages: Sequence[Message], clock: Clock) -> None:
        """Requests that were read together."""
        now = Moment(time.time() * 1000, time.monotonic())
        records = clock("record", lambda: records_of(messages))
        owned = self._owned
        clock("offset", lambda: [owned.deliver(each.offset, each.timestamp_ms) for each in records])
        headers = clock("decode", lambda: [RequestHeaders.parse(each.headers) for each in records])
        clock("decode", lambda: [self._decoder.decode(each.value, each.key) for each in records])
        clock("identity", lambda: [identity_of(*each) for each in zip(records, headers, strict=True)])
        read = clock(
            "request",
            lambda: [self._reader.read(each, owned, now) for each in records],
        )
        ready = clock("history", lambda: self._histories.admit(read))
        clock("queue", lambda: self._queue.add(ready))
        batches = clock("batch", self._batches)
        answers = self._engine.submit([each.asked for each in ready]).collect()
        items = [item for batch in batches for item in batch.items]
        outcomes = [Outcome(item, answer, "recall") for item, answer in zip(items, answers, strict=True)]
        came = time.monotonic()
        sends = clock("encode", lambda: [sent for each in outcomes for sent in self._writer.write(each, came)])
        clock("produce", lambda: self._writer.send(sends, self._producer))
        self._reported(len(sends), clock)
        clock("count", lambda: self._writer.delivered(sends, time.monotonic()))
        clock("offset", lambda: [item.ownership.finish(item.record.offset) for item in items])

    def _batches(self) -> list[Batch[InFlight]]:
        batches: list[Batch[InFlight]] = []
        while len(self._queue):
            batch = self._queue.next(idle=True)
            if isinstance(batch, Batch):
                batches.append(batch)
                self._queue.costs.observe(batch.mode, batch.work, 1e-4)
        return batches

    def _reported(self, count: int, clock: Clock) -> None:
        while count:
            reports = clock("reports", lambda: self._producer.poll(_REPORTS_S))
            if reports.failed:
                raise RuntimeError("a reply was not delivered")
            count -= len(reports)

    @staticmethod
    def _observer_error(code: str) -> None:
        raise RuntimeError(code)


def messages(topic: str, first: int, count: int) -> list[Message]:
    now = round(time.time() * 1000)
    return [
        Message(
            topic,
            0,
            number,
            f"user-{number}".encode(),
            request(number),
            [("correlation-id", number.to_bytes(16, "big"))],
            None,
            (1, now),
        )
        for number in range(first, first + count)
    ]


def measure(path: Parts, topic: str, first: int, count: int) -> dict[str, float]:
    """Microseconds a request by step."""
    clock = Clock()
    for begin in range(first, first + count, _RUN):
        path.run(messages(topic, begin, _RUN), clock)
    spent = {step: seconds / count * 1e6 for step, seconds in clock.seconds.items()}
    spent["request"] -= spent["decode"] + spent["identity"]  # which are in it, too
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64 * 150, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "request_steps.json")
    asked = parser.parse_args()
    head = {**describe(torch.device("cpu")), "librdkafka": confluent_kafka.libversion()[0], "cpus": os.cpu_count()}
    report = ReportFile(
        asked.out, {"kind": "request_steps", **head, "request_bytes": len(request(0)), "load_before": os.getloadavg()}
    )
    topics = {"replies": 1, "requests": 1, "dead": 1}
    with MockCluster(topics) as cluster:
        kafka = KafkaSettings(
            bootstrap_servers=cluster.bootstrap_servers,
            request_topic="requests",
            reply_topic="replies",
            dead_letter_topic="dead",
        )
        path = Parts(kafka)
        measure(path, "requests", 0, 20 * _RUN)
        garbage.settle()
        rounds = [measure(path, "requests", (at + 1) * 10**6, asked.count) for at in range(asked.rounds)]
    for step, (thread, meaning) in STEPS.items():
        cpu = round(median(each[step] for each in rounds), 2)
        report.add({"what": step, "case": thread, "cpu_us": cpu, "meaning": meaning})
    report.note(cpu_us=round(sum(row["cpu_us"] for row in report.rows), 2), load_after=os.getloadavg())
    Console(stderr=True).print(*[(row["case"], row["what"], row["cpu_us"]) for row in report.rows], sep="\n")


if __name__ == "__main__":
    main()
