"""Members die while events make histories, and Redis stands still now and then: every event counts once, in order."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from consumer.histories.items import Cap
from consumer.histories.operation import UserKey
from consumer.histories.redis_store import RedisStore, store_of
from consumer.histories.settings import HistorySettings
from consumer.wire.outgoing import encode_event, encode_forget, encode_request
from consumer.wire.reply import decode_reply
from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import Installation
from engine.model.spec import ModelSpec
from tests.kafka.fleet import PARTITIONS, REPLY_PARTITIONS, Group, group
from tests.kafka.load import wait_until
from tests.kafka.test_stress_kills import MEMBERS, SESSION_S, Killer

pytestmark = [pytest.mark.kafka, pytest.mark.stress, pytest.mark.timeout(7200)]

USERS = 120
RATE = 150
UNKNOWN = 1_000_000
"""Items that no catalog has: a reply counts those that its history held."""


@dataclass
class Traffic:
    """Events, requests, now and then a whole history or a forget; what each user's history is after each record."""

    bootstrap_servers: str
    topic: str
    cap: Cap
    seed: int
    sent: Counter[str] = field(default_factory=Counter)
    truth: dict[str, list[int] | None] = field(default_factory=dict)
    counts: dict[str, list[int | None]] = field(default_factory=dict)
    """Of each user, after each record: how many items a prompt holds, none without a history."""
    requests: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """Partition and offset to the user, and to the place in ``counts`` of what it must see."""
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._next = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(30) == 0
        assert not self.failures, self.failures[0]

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / RATE, time.monotonic() - 0.5)
            self._send()
            self._producer.poll(0)

    def _send(self) -> None:
        number = self._random.randrange(USERS)
        user = f"u{number}"
        kind = self._random.choices(("event", "held", "append", "whole", "forget"), (70, 20, 6, 3, 1))[0]
        new = self._items()
        held = self.truth.get(user)
        if kind == "event":
            value, held = encode_event(user, new), [*(held or []), *new]
        elif kind == "append":
            value = encode_request(f"r{self._next}", {"user_id": user, "append": new})
            held = None if held is None else [*held, *new]
        elif kind == "whole":
            value, held = encode_request(f"r{self._next}", {"user_id": user, "history": new}), new
        elif kind == "forget":
            value, held = encode_forget(user), None
        else:
            value = encode_request(f"r{self._next}", {"user_id": user})
        self.truth[user] = held
        counts = self.counts.setdefault(user, [])
        place = len(counts)
        counts.append(None if held is None else self.used(held))
        self.sent[kind] += 1
        answered = kind in ("held", "append", "whole")

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(error.str())
            elif answered:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.requests[partition, offset] = user, place

        self._producer.produce(
            self.topic, value, key=user.encode(), partition=number % PARTITIONS, on_delivery=delivered
        )

    def _items(self) -> list[int]:
        count = self._random.randint(1, 3)
        self._next += count
        return [UNKNOWN + each for each in range(self._next - count, self._next)]

    def used(self, held: list[int]) -> int:
        """Items of a history that its prompt holds."""
        excess = len(held) - self.cap.most
        return len(held) if excess <= 0 else len(held) - -(-excess // self.cap.drop) * self.cap.drop


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_no_event_is_lost_or_doubled_in_write_through(
    broker: KafkaCluster, tmp_path: Path, kills: int, seed: int, protocol: str
) -> None:
    run(broker, tmp_path, kills, seed, f"--kafka.group_protocol={protocol}")


def test_no_event_is_lost_or_doubled_where_offsets_go_with_the_replies(
    installation: Installation, tmp_path: Path, kills: int, seed: int
) -> None:
    """On a broker that soon ends the transactions of the killed: its readers wait for that."""
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with KafkaCluster(installation, tmp_path / "broker", options=soon) as cluster:
        run(cluster, tmp_path, kills, seed, "--kafka.delivery=exactly-once", "--kafka.transaction_timeout_ms=4000")


def run(broker: KafkaCluster, tmp_path: Path, kills: int, seed: int, *more: str) -> None:
    """Kill so many under events and requests, end the others, compare what Redis holds with what was sent."""
    flags = (
        *more,
        f"--kafka.session_timeout_ms={SESSION_S * 1000}",
        f"--kafka.consumer_session_timeout_ms={SESSION_S * 1000}",
        "--kafka.heartbeat_interval_ms=300",
        "--batch.max_requests=4",
        "--recall.deadline_ms=60000",
        "--batch.commit_interval_ms=20",
        "--histories.store=write-through",
        "--histories.timeout_s=0.5",
        "--histories.lookup_ms=30000",
        "--histories.entries=40",  # fewer than there are: they are looked up again and again
    )
    with group(broker, tmp_path, *flags) as each:
        spec = ModelSpec.load(tmp_path / "model")
        cap = Cap(spec.max_history_items, spec.history_drop)
        each.members = [each.member() for _ in range(MEMBERS)]
        each.await_ready()
        traffic = Traffic(broker.bootstrap_servers, each.topics[0], cap, seed)
        killer, pauses = Killer(each, seed), 0
        traffic.start()
        try:
            time.sleep(2)
            with redis.Redis.from_url(each.catalog.url.get_secret_value()) as client:
                for number in range(kills):
                    if number % 3 == 2:  # what was read and is not saved must not be committed
                        client.execute_command("CLIENT", "PAUSE", "1200", "ALL")
                        pauses += 1
                        time.sleep(0.3)
                    killer.kill_one()
        finally:
            traffic.stop()
        each.await_ready()
        wait_until(lambda: uncommitted(each) == 0, 120, lambda: f"{uncommitted(each)} records are not committed")
        killer.check_clean_ends()
        assert each.stop() == [0] * MEMBERS
        settings = HistorySettings.model_validate(
            {"store": "write-through", "url": each.catalog.url.get_secret_value()}
        )
        store = store_of(settings, each.catalog, cap)
        assert store is not None
        wrong = [user for user in traffic.truth if differs(stored(store, each.topics[0], user), traffic, user)]
        late, wrongly, unanswered = judge(each, traffic)
        print(  # noqa: T201 - shown by pytest -rP, the run's record
            f"{dict(killer.kills)} kills, {pauses} pauses of Redis, "
            f"{sum(traffic.sent.values())} records {dict(traffic.sent)}: "
            f"{len(wrong)} of {len(traffic.truth)} histories wrong; of {len(traffic.requests)} requests {unanswered} "
            f"unanswered, {wrongly} saw what never was, {late} saw later events too when they came again"
        )
        assert wrong == []
        assert (wrongly, unanswered) == (0, 0)
        assert kills or late == 0, "nothing came again"


def uncommitted(each: Group) -> int:
    """Records past the group's offsets."""
    asker = Consumer(
        {"bootstrap.servers": each.cluster.bootstrap_servers, "group.id": each.name, "enable.auto.commit": False}
    )
    try:
        places = [TopicPartition(each.topics[0], number) for number in range(PARTITIONS)]
        found = asker.committed(places, timeout=10)
        return sum(asker.get_watermark_offsets(place, timeout=10)[1] - max(0, place.offset) for place in found)
    finally:
        asker.close()


def stored(store: RedisStore, topic: str, user: str) -> list[int] | None:
    _, (found,) = store.exchange((), [UserKey(topic, user)])
    items = found.history.snapshot()
    return None if items is None else [int(item) for item in items]


def differs(found: list[int] | None, traffic: Traffic, user: str) -> bool:
    """From what was sent, as far as a prompt of it goes."""
    sent = traffic.truth[user]
    if sent is None or found is None:
        return sent is not found
    used = traffic.used(sent)
    return sent[len(sent) - used :] != found[len(found) - used :]


def judge(each: Group, traffic: Traffic) -> tuple[int, int, int]:
    """Requests of which a reply saw later events, one saw what was neither then nor later, and without a reply."""
    reader = Consumer(
        {"bootstrap.servers": each.cluster.bootstrap_servers, "group.id": "judge", "enable.auto.commit": False}
    )
    reader.assign([TopicPartition(each.topics[1], number, OFFSET_BEGINNING) for number in range(REPLY_PARTITIONS)])
    seen: dict[tuple[int, int], list[int | None]] = {}
    """Of each request that was answered; those that expired saw nothing."""
    while (message := reader.poll(8.0)) is not None:
        if message.error() is not None:
            continue
        headers = dict(message.headers() or ())
        place = int(headers["request-partition"] or b""), int(headers["request-offset"] or b"")
        reply = decode_reply(message.value())
        counts = seen.setdefault(place, [])
        if reply.status == "ok":
            counts.append(reply.unknown_items)
        elif reply.error is not None and reply.error.code == "need_history":
            counts.append(None)
    reader.close()
    late = wrongly = unanswered = 0
    for place, (user, at) in traffic.requests.items():
        replies, counts = seen.get(place, []), traffic.counts[user]
        unanswered += place not in seen
        wrongly += any(count not in counts[at:] for count in replies)
        late += any(count != counts[at] for count in replies)
    return late, wrongly, unanswered
