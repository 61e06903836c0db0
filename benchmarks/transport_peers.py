"""What ``transport.py`` measures, each in a process of its own: the service on a no-op engine, and the bare client."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from consumer.service import garbage
from consumer.service.metrics import Metrics
from consumer.service.observer import MetricsObserver
from consumer.serving.observer import Replied
from consumer.serving.recaller import Answer
from consumer.serving.service import ServingLoop
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.request import ItemIds, RecallRequest, RecallResult

TOP_K = 100
CATALOG = "noop"
THREADS = ("intake", "device", "replies", "MainThread")
_HOUR_MS = 3_600_000
_COMMIT_S = 0.1
_POLL_S = 0.002


def cpu_of(thread: threading.Thread) -> float:
    """CPU seconds of one thread."""
    return 0.0 if thread.ident is None else time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


@dataclass(frozen=True, slots=True)
class Usage:
    """Replies that the broker confirmed so far, when, and the CPU seconds by then: of the process, of its threads.

    What the process has more than its threads is the Kafka client's own.
    """

    replies: int
    at: float
    cpu: float
    threads: Mapping[str, float]
    commits: int = 0

    @classmethod
    def now(cls, replies: int, commits: int = 0) -> "Usage":
        threads = {thread.name: cpu_of(thread) for thread in threading.enumerate() if thread.name in THREADS}
        return cls(replies, time.monotonic(), time.process_time(), threads, commits)


@dataclass(frozen=True)
class NoOpSpec:
    levels: tuple[int, ...] = (0, 1, 2)
    max_history_items: int = 200
    history_drop: int = 50


@dataclass(frozen=True)
class Finished:
    answers: list[Answer]
    done: bool = True

    def collect(self) -> list[Answer]:
        return self.answers


class NoOpEngine:
    """Answers every request at once with the same items."""

    spec = NoOpSpec()

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        items, scores = rng.integers(1, 10**7, TOP_K), -rng.random(TOP_K, np.float32)
        self._result: Answer = RecallResult(items, scores, "noop", CATALOG, (TOP_K,) * 3, exhausted=False)

    def validate(self, request: RecallRequest) -> None:
        """Everything can be served."""

    def check_ids(self, ids: ItemIds) -> None:
        """All are known."""

    def estimate_tokens(self, request: RecallRequest) -> int:
        return 100

    def forget(self, user: str) -> None:
        """Nothing is kept."""

    def drop(self, lost: Callable[[str], bool]) -> None:
        """Nothing is kept."""

    def submit(self, requests: Sequence[RecallRequest], *, beside: bool = True) -> Finished:
        return Finished([self._result] * len(requests))


class Counting(MetricsObserver):
    """The service's metrics; ``confirmed`` counts the replies that the broker took."""

    def __init__(self) -> None:
        super().__init__(Metrics())
        self.confirmed = 0
        self.commits = 0

    def committed(self, ok: bool) -> None:
        super().committed(ok)
        self.commits += ok

    def replied(self, replies: Replied) -> None:
        super().replied(replies)
        self.confirmed += len(replies.confirmed_ms)


def serve(kafka: KafkaSettings, batch: BatchSettings, pipe: Connection) -> None:
    """The service; answers every word on ``pipe`` with a Usage, until that is closed."""
    observer = Counting()
    defaults = RecallDefaults(top_k=TOP_K, width=TOP_K, deadline_ms=_HOUR_MS, max_deadline_ms=_HOUR_MS)
    loop = ServingLoop(
        NoOpEngine(),
        kafka=kafka,
        batch=batch,
        limits=WireLimits(),
        defaults=defaults,
        active_catalog=lambda: CATALOG,
        observer=observer,
    )
    garbage.settle()
    loop.start()
    with _until_closed(pipe):
        while True:
            pipe.recv()
            if loop.failure:
                raise RuntimeError(loop.failure)
            pipe.send(Usage.now(observer.confirmed, observer.commits))
    loop.stop()


def echo(kafka: KafkaSettings, batch: BatchSettings, pipe: Connection) -> None:
    """The bare client with the service's settings: reads, writes as large a reply with as many headers, commits.

    It flushes nothing, so each reply leaves as soon as it is handed over.
    """
    consumer = Consumer({**kafka.consumer("classic"), "auto.offset.reset": "earliest"})
    producer = Producer({**kafka.producer(), "linger.ms": 0})
    confirmed = 0
    reply = b"\x00" * 1_250
    due = 0.0

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal confirmed
        if error is not None:
            raise KafkaException(error)
        confirmed += 1

    consumer.subscribe([kafka.request_topic])
    with _until_closed(pipe):
        while True:
            first = consumer.poll(_POLL_S)
            room = 1 if first is None else batch.max_in_flight - len(producer)
            for message in [first, *(consumer.consume(room - 1, 0) if room > 1 else ())] if first else ():
                if message.error():
                    raise KafkaException(message.error())
                headers = dict(message.headers() or ())
                place = [("request-topic", b"topic"), ("request-partition", b"0"), ("request-offset", b"0")]
                producer.produce(
                    kafka.reply_topic,
                    value=reply,
                    key=message.key(),
                    headers=[("correlation-id", headers["correlation-id"]), *place],
                    on_delivery=delivered,
                )
                consumer.store_offsets(message)
                producer.poll(0)
            producer.poll(0)
            while len(producer) >= batch.max_in_flight:
                producer.poll(0.001)
            if time.monotonic() > due and first is not None:
                due = time.monotonic() + _COMMIT_S
                consumer.commit(asynchronous=True)
            if pipe.poll():
                pipe.recv()
                pipe.send(Usage.now(confirmed))
    consumer.close()


@contextmanager
def _until_closed(pipe: Connection) -> Iterator[None]:
    try:
        yield
    except (EOFError, BrokenPipeError):
        pipe.close()
