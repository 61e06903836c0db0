"""A serving loop with a fake engine on the embedded broker, and clients that write requests and read what comes out."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from catalog_sync.settings import CatalogSettings
from consumer.histories.items import Cap
from consumer.histories.redis_store import RedisStore, store_of
from consumer.histories.settings import HistorySettings
from consumer.serving.cost_model import UNKNOWN, Prior
from consumer.serving.last_replies import Catalogs
from consumer.serving.load_settings import LoadSettings
from consumer.serving.service import ServingLoop
from consumer.serving.settings import BatchSettings
from consumer.serving.snapshot import ServingSnapshot
from consumer.serving.tracing import RequestTracer
from consumer.stream.mock_cluster import CLIENT_SETTINGS, MockCluster, MockClusterMissingError
from consumer.stream.settings import KafkaSettings
from consumer.wire.outgoing import encode_request
from consumer.wire.reply import RecallReply, decode_reply
from consumer.wire.settings import RecallDefaults, WireLimits
from tests.consumer.events import Events
from tests.consumer.fake_engine import FakeEngine, FakeSpec
from tests.consumer.waiting import eventually

REQUESTS = "recall.requests"
REPLIES = "recall.replies"
DEAD_LETTERS = "recall.dead-letters"
SILENT = logging.Logger("test clients", logging.CRITICAL + 1)
READER = {"enable.auto.commit": False, **CLIENT_SETTINGS}
RECONNECT_FAST = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


@dataclass(frozen=True)
class Received:
    key: bytes | None
    value: bytes | None
    partition: int
    headers: dict[str, bytes]

    @property
    def reply(self) -> RecallReply:
        return decode_reply(self.value)


@dataclass(frozen=True)
class Member:
    """A running loop, the engine behind it and what it reported."""

    loop: ServingLoop
    engine: FakeEngine
    events: Events

    def snapshot(self) -> ServingSnapshot:
        return self.loop.snapshot()

    def stop(self) -> int:
        return self.loop.stop()

    def owned(self) -> set[int]:
        return {each.partition for each in self.snapshot().partitions}


class TopicReader:
    """Collects a topic's records from its beginning."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.records: list[Received] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"reader-{topic}",
                **READER,
            },
            logger=SILENT,
        )
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])

    def poll(self) -> list[Received]:
        """All records so far."""
        while (message := self._consumer.poll(0.02)) is not None:
            if message.error() is None:
                headers = dict(cast(list[tuple[str, bytes]], message.headers() or []))
                partition = message.partition()
                assert partition is not None
                self.records.append(Received(message.key(), message.value(), partition, headers))
        return self.records

    def wait(self, count: int, timeout: float = 20.0) -> list[Received]:
        """Exactly ``count`` records, once they are there."""
        eventually(lambda: len(self.poll()) >= count, timeout)
        assert len(self.records) == count
        return self.records

    def close(self) -> None:
        self._consumer.close()


@dataclass(kw_only=True)
class GroupHarness:
    """One consumer group on any brokers; its loops are started with ``member``."""

    bootstrap_servers: str
    replies: TopicReader
    dead_letters: TopicReader
    requests: str = REQUESTS
    group: str = field(default_factory=lambda: f"g-{uuid.uuid4().hex[:8]}")
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": self.bootstrap_servers}, logger=SILENT)
        asker = {"bootstrap.servers": self.bootstrap_servers, "group.id": self.group, **READER}
        self._asker = Consumer(asker, logger=SILENT)

    def kafka(self, **changes: Any) -> KafkaSettings:
        fast = {
            "bootstrap_servers": self.bootstrap_servers,
            "group_id": self.group,
            "group_protocol": "classic",
            "session_timeout_ms": 2_000,  # the mock holds every rebalance for a second less than this
            "max_poll_interval_ms": 60_000,
            "heartbeat_interval_ms": 200,
            "client_options": RECONNECT_FAST,
            "consumer_options": dict(CLIENT_SETTINGS),
        }
        return KafkaSettings.model_validate({**fast, **changes})

    def member(
        self,
        engine: FakeEngine | None = None,
        *,
        kafka: KafkaSettings | None = None,
        defaults: RecallDefaults | None = None,
        load: LoadSettings | None = None,
        prior: Prior = UNKNOWN,
        catalogs: Catalogs | None = None,
        active_catalog: Callable[[], str | None] = lambda: None,
        histories: HistorySettings | None = None,
        tracer: RequestTracer | None = None,
        end_process: Callable[[int], None] | None = None,
        events: Events | None = None,
        start: bool = True,
        wait: bool = True,
        **batch: Any,
    ) -> Member:
        """Start a loop and wait until it owns partitions."""
        engine, events = engine or FakeEngine(), events or Events()
        loop = ServingLoop(
            engine,
            kafka=kafka or self.kafka(),
            batch=BatchSettings.model_validate({"drain_s": 5.0, "revoke_drain_s": 2.0, **batch}),
            limits=WireLimits(),
            defaults=defaults or RecallDefaults(top_k=3, width=4, deadline_ms=30_000),
            load=load,
            prior=prior,
            catalogs=catalogs,
            active_catalog=active_catalog,
            histories=histories,
            store=_store(histories),
            observer=events,
            tracer=tracer,
            end_process=end_process or _refuse_to_end,
        )
        member = Member(loop, engine, events)
        self.members.append(member)
        if start:
            loop.start()
        if start and wait:
            eventually(lambda: loop.snapshot().partitions)
        return member

    def send(
        self,
        request_id: str = "r",
        *,
        value: bytes | None = None,
        topic: str | None = None,
        key: bytes | None = b"user",
        partition: int = 0,
        headers: dict[str, bytes] | None = None,
        timestamp: int = 0,
        **options: Any,
    ) -> None:
        """Write one request, or the given bytes."""
        if value is None:
            value = encode_request(request_id, {"history": [1, 2, 3], **options})  # type: ignore[typeddict-item]  # any field
        self._producer.produce(
            topic or self.requests,
            value,
            key=key,
            partition=partition,
            headers=list((headers or {}).items()),
            timestamp=timestamp,
        )

    def flush(self) -> None:
        assert self._producer.flush(20) == 0

    def committed(self, partition: int = 0, topic: str | None = None) -> int:
        """The group's committed offset, -1001 when there is none."""
        (found,) = self._asker.committed([TopicPartition(topic or self.requests, partition)], timeout=10)
        return int(found.offset)

    def end_of(self, topic: str, partition: int = 0) -> int:
        """Offset of the next record that the topic will hold."""
        _, end = self._asker.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        return int(end)

    def close(self) -> None:
        for member in self.members:
            member.engine.gate.set()
            member.stop()
        self._asker.close()
        self.replies.close()
        self.dead_letters.close()


@dataclass(kw_only=True)
class Harness(GroupHarness):
    """The same on the embedded broker."""

    cluster: MockCluster


def _store(histories: HistorySettings | None) -> RedisStore | None:
    spec = FakeSpec()
    cap = Cap(spec.max_history_items, spec.history_drop)
    return store_of(histories or HistorySettings(), CatalogSettings(), cap)


def _refuse_to_end(code: int) -> None:
    raise AssertionError(f"the loop wanted to end the process with {code}")


def mock_cluster(topics: Mapping[str, int], brokers: int = 1) -> MockCluster:
    """Skips the test with the reason where this client has no such broker."""
    try:
        return MockCluster(topics, brokers=brokers)
    except MockClusterMissingError as missing:
        pytest.skip(str(missing))


@contextmanager
def harness(partitions: int = 1, brokers: int = 1, **topics: int) -> Iterator[Harness]:
    """A cluster with the three topics (and ``topics``), closed at the end with everything that was started on it."""
    with mock_cluster({REQUESTS: partitions, REPLIES: 2, DEAD_LETTERS: 1, **topics}, brokers) as cluster:
        at = cluster.bootstrap_servers
        made = Harness(
            cluster=cluster,
            bootstrap_servers=at,
            replies=TopicReader(at, REPLIES, 2),
            dead_letters=TopicReader(at, DEAD_LETTERS, 1),
        )
        try:
            yield made
        finally:
            made.close()


def now_ms() -> int:
    return round(time.time() * 1000)
