"""Users who come back with a few new events, each time with a deadline; what became of every visit."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from consumer.wire.outgoing import encode_request
from consumer.wire.reply import RecallReply, decode_reply

_NEW = 3
"""Items of a visit."""


@dataclass(slots=True)
class Visit:
    """Times are seconds of the monotonic clock; ``at`` is none until the reply is there; ``whole``: a visit that had to
    bring the whole history because the service had none.
    """

    user: int
    due: float
    at: float | None = None
    status: str = "unanswered"
    degraded: bool = False
    context_tokens: int = 0
    new_tokens: int = 0
    whole: bool = False

    def in_time(self, deadline_s: float) -> bool:
        return self.status == "ok" and self.at is not None and self.at - self.due <= deadline_s


@dataclass
class ReturningUsers:
    """``rate`` visits a second by ``users`` in turn, a random one of them next; no user has two in the air.

    A user who is told ``need_history`` sends everything at once, as part of the same visit.
    """

    bootstrap_servers: str
    topics: tuple[str, str]
    partitions: int
    reply_partitions: int
    users: int
    rate: float
    deadline_s: float
    items: Sequence[int]
    lengths: tuple[int, int]
    seed: int = 1
    visits: list[Visit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._histories = {user: self._some(self._random.randint(*self.lengths)) for user in range(self.users)}
        self._idle = list(range(self.users))
        self._waiting: dict[str, Visit] = {}
        self._lock = threading.Lock()
        self._stop, self._done = threading.Event(), threading.Event()
        self.failures: list[str] = []
        self._producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 0})
        self._reader = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": f"users-{self.topics[1]}",
                "enable.auto.commit": False,
            }
        )
        self._reader.assign([TopicPartition(self.topics[1], number, 0) for number in range(self.reply_partitions)])
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Send no more, wait a little for what is in the air."""
        self._stop.set()
        self._threads[0].join()
        end = time.monotonic() + 5 * self.deadline_s
        while self._waiting and time.monotonic() < end:
            time.sleep(0.05)
        self._done.set()
        self._threads[1].join()
        self._reader.close()
        assert not self.failures, self.failures[0]

    def _some(self, count: int) -> list[int]:
        return self._random.choices(self.items, k=count)

    def _send(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / self.rate, time.monotonic() - 0.5)
            with self._lock:
                if not self._idle:
                    continue
                user = self._idle.pop(self._random.randrange(len(self._idle)))
                visit = Visit(user, time.monotonic())
                self.visits.append(visit)
            new = self._some(_NEW)
            self._histories[user] += new
            self._ask(visit, {"append": new})

    def _ask(self, visit: Visit, options: dict[str, list[int]]) -> None:
        request_id = f"{visit.user}-{len(self.visits)}-{visit.whole:d}"
        deadline_ms = round((time.time() + visit.due + self.deadline_s - time.monotonic()) * 1000)
        asked = {"user_id": f"u{visit.user}", "deadline_ms": deadline_ms, **options}
        with self._lock:
            self._waiting[request_id] = visit
        self._producer.produce(
            self.topics[0],
            encode_request(request_id, asked),  # type: ignore[arg-type]  # built field by field
            key=b"u%d" % visit.user,
            partition=visit.user % self.partitions,
            on_delivery=self._delivered,
        )
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.failures.append(error.str())

    def _read(self) -> None:
        while not self._done.is_set():
            message = self._reader.poll(0.05)
            if message is None or message.error() is not None:
                continue
            reply = decode_reply(message.value())
            with self._lock:
                visit = self._waiting.pop(reply.request_id or "", None)
            if visit is not None:  # none: it came again
                self._told(visit, reply)

    def _told(self, visit: Visit, reply: RecallReply) -> None:
        code = None if reply.error is None else reply.error.code
        if code == "need_history" and not visit.whole:
            visit.whole = True
            self._ask(visit, {"history": self._histories[visit.user]})
            return
        visit.at, visit.status = time.monotonic(), reply.status if reply.status != "error" else str(code)
        visit.degraded = bool(reply.degraded)
        visit.context_tokens, visit.new_tokens = reply.context_tokens, reply.context_tokens - reply.reused_tokens
        with self._lock:
            self._idle.append(visit.user)
