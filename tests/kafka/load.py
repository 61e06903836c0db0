"""Requests for a group, a fixed number of them unanswered; some are poisoned or have a hopeless deadline."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from consumer.wire.outgoing import encode_request

_HOPELESS_MS = 20


class Load:
    """Keeps ``outstanding`` requests unanswered, at most ``rate`` a second, spread over the partitions in turn."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        answers: dict[str, int],
        *,
        rate: float,
        outstanding: int,
        odd: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.sent = 0
        self.answered = 0
        self._topic = topic
        self._partitions = partitions
        self._interval = 1 / rate
        self._outstanding = outstanding
        self._odd = odd
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._done = threading.Event()
        self._failures: list[str] = []
        self._seen: set[tuple[bytes, bytes]] = set()
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "enable.idempotence": True})
        self._reader = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": f"load-{topic}", "enable.auto.commit": False}
        )
        self._reader.assign(
            [
                TopicPartition(name, number, OFFSET_BEGINNING)
                for name, count in answers.items()
                for number in range(count)
            ]
        )
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more; what was sent is in the topic when this returns."""
        self._stop.set()
        self._threads[0].join()
        assert self._producer.flush(30) == 0
        assert not self._failures, self._failures[0]

    def close(self) -> None:
        self._stop.set()
        self._done.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._reader.close()

    def _send(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            due = max(due + self._interval, time.monotonic() - 0.2)
            self._stop.wait(max(0.0, due - time.monotonic()))
            while self.sent - self.answered >= self._outstanding and not self._stop.wait(0.005):
                pass
            self._producer.produce(
                self._topic,
                self._value(),
                key=b"%d" % self.sent,
                partition=self.sent % self._partitions,
                on_delivery=self._delivered,
            )
            self.sent += 1
            self._producer.poll(0)

    def _value(self) -> bytes:
        chance = self._random.random()
        if chance < self._odd / 2:
            return b"\xc1 poison"
        options: dict[str, Any] = {"history": self._random.sample(range(100, 160), 5)}
        if chance < self._odd:
            options["deadline_ms"] = round(time.time() * 1000) + _HOPELESS_MS
        return encode_request(f"r{self.sent}", options)  # type: ignore[arg-type]  # built field by field

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failures.append(error.str())

    def _read(self) -> None:
        while not self._done.is_set():
            message = self._reader.poll(0.05)
            if message is None or message.error() is not None:
                continue
            headers: dict[str, Any] = dict(message.headers() or ())
            prefix = "request-" if "request-offset" in headers else "dlq.original."
            self._seen.add((headers[prefix + "partition"], headers[prefix + "offset"]))
            self.answered = len(self._seen)


def wait_until(condition: Callable[[], Any], seconds: float, what: Callable[[], str], every: float = 0.05) -> None:
    """Poll until true; fails saying ``what``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(every)
