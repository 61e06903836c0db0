"""The serving harness on a real broker: topics of its own for every test, and the log of the group's commits."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from consumer.stream.settings import KafkaSettings
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.serving_harness import GroupHarness, TopicReader
from tests.consumer.waiting import eventually
from tests.kafka.commit_log import Commit, read_commits

REPLY_PARTITIONS = 2


@dataclass(kw_only=True)
class RealHarness(GroupHarness):
    """One consumer group on ``cluster``."""

    cluster: KafkaCluster
    reply_topic: str
    dead_letter_topic: str
    protocol: str = "classic"

    def kafka(self, **changes: Any) -> KafkaSettings:
        here = {
            "request_topic": self.requests,
            "reply_topic": self.reply_topic,
            "dead_letter_topic": self.dead_letter_topic,
            "group_protocol": self.protocol,
            "session_timeout_ms": 6_000,
            "consumer_session_timeout_ms": 6_000,
            "heartbeat_interval_ms": 300,
            "consumer_options": {},
        }
        return super().kafka(**{**here, **changes})

    def committed(self, partition: int = 0, topic: str | None = None) -> int:
        """The group's committed offset; asks again while the coordinator is not up."""

        def ask() -> tuple[int] | None:
            try:
                return (super(RealHarness, self).committed(partition, topic),)
            except KafkaException:
                return None

        return eventually(ask)[0]

    def commits(self) -> list[Commit]:
        """Every commit of the group so far, in the order of the broker's log."""
        return read_commits(self.bootstrap_servers, self.group)

    def delete_records(self, before: int, partition: int = 0) -> None:
        """Delete the requests below an offset, as retention does."""
        cut = [TopicPartition(self.requests, partition, before)]
        for done in self.cluster.admin.delete_records(cut).values():
            done.result(10)


@contextmanager
def real_harness(
    cluster: KafkaCluster, partitions: int = 1, config: Mapping[str, str] | None = None
) -> Iterator[RealHarness]:
    """Fresh topics; ``config`` is that of the reply topic. Everything that was started on it is stopped at the end."""
    name = uuid.uuid4().hex[:8]
    requests, replies, dead_letters = f"{name}.requests", f"{name}.replies", f"{name}.dead-letters"
    cluster.create_topics({requests: partitions, dead_letters: 1})
    cluster.create_topics({replies: REPLY_PARTITIONS}, config)
    at = cluster.bootstrap_servers
    made = RealHarness(
        cluster=cluster,
        bootstrap_servers=at,
        requests=requests,
        reply_topic=replies,
        dead_letter_topic=dead_letters,
        replies=TopicReader(at, replies, REPLY_PARTITIONS),
        dead_letters=TopicReader(at, dead_letters, 1),
        group=f"g-{name}",
    )
    try:
        yield made
    finally:
        made.close()
