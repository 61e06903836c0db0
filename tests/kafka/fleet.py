"""A group of ``serve`` members on a real broker, with topics stamped by the broker, a catalog and a tiny model."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.settings import CatalogSettings
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.serve_harness import ITEMS, MODEL, publish
from tests.engine.tiny_models import TinyModel, write_model
from tests.kafka.checker import Answer, Verdict, judge_topics, read_answers
from tests.kafka.load import Load, wait_until
from tests.kafka.members import ServeProcess

PARTITIONS = 6
REPLY_PARTITIONS = 3
_QUIET_S = 45.0
_STOP_S = 60.0


@dataclass
class Group:
    """``members`` are replaced as they are killed; ``flags`` are those of every member."""

    cluster: KafkaCluster
    name: str
    flags: list[str]
    logs: Path
    catalog: CatalogSettings
    members: list[ServeProcess] = field(default_factory=list)
    started: int = 0

    @property
    def topics(self) -> tuple[str, str, str]:
        """Requests, replies, dead letters."""
        return f"{self.name}.requests", f"{self.name}.replies", f"{self.name}.dead-letters"

    def member(self) -> ServeProcess:
        self.started += 1
        return ServeProcess(self.flags, self.logs / f"member-{self.started}.log")

    def load(self, **how: Any) -> Load:
        requests, replies, dead_letters = self.topics
        answers = {replies: REPLY_PARTITIONS, dead_letters: 1}
        return Load(self.cluster.bootstrap_servers, requests, PARTITIONS, answers, **how)

    def await_ready(self) -> None:
        """Every member ready and in possession of partitions."""
        for member in self.members:
            wait_until(lambda member=member: member.ready() and member.owned(), _STOP_S, member.last_words)  # type: ignore[misc]  # bound early

    def await_answers(self, load: Load) -> None:
        """Until everything is answered, or nothing has been for a while: what that means is the checker's to say."""
        seen, since = -1, time.monotonic()
        while load.answered < load.sent and time.monotonic() - since < _QUIET_S:
            if load.answered != seen:
                seen, since = load.answered, time.monotonic()
            time.sleep(0.05)

    def stop(self) -> list[int | None]:
        """SIGTERM to all; their exit codes."""
        for member in self.members:
            member.process.terminate()
        return [member.ended(_STOP_S) for member in self.members]

    def judge(self, *, atomic: bool = False) -> Verdict:
        return judge_topics(self.cluster.bootstrap_servers, self.name, *self.topics, atomic=atomic)

    def answers(self) -> list[Answer]:
        _, replies, dead_letters = self.topics
        return read_answers(self.cluster.bootstrap_servers, replies, dead_letters)


@contextmanager
def group(
    cluster: KafkaCluster, scratch: Path, *flags: str, model: TinyModel = MODEL, pages: int = 64
) -> Iterator[Group]:
    """Topics and a catalog for a new group; kills what is left of it at the end. ``model``: of the catalog's sizes."""
    name = f"g{uuid.uuid4().hex[:8]}"
    with EmbeddedRedis() as redis:
        catalog = CatalogSettings.model_validate({"url": redis.url})
        publish(catalog, ITEMS, name)
        made = Group(cluster, name, [], scratch, catalog)
        requests, replies, dead_letters = made.topics
        made.flags = [
            f"--engine.model={write_model(model, scratch / 'model')}",
            f"--engine.context_pages={pages}",
            "--engine.threads=1",
            "--recall.width=8",
            "--recall.top_k=5",
            f"--kafka.bootstrap_servers={cluster.bootstrap_servers}",
            f"--kafka.group_id={name}",
            f"--kafka.request_topic={requests}",
            f"--kafka.reply_topic={replies}",
            f"--kafka.dead_letter_topic={dead_letters}",
            f"--catalog.url={redis.url}",
            f"--catalog.namespace={name}",
            *flags,
        ]
        stamped = {"message.timestamp.type": "LogAppendTime"}
        cluster.create_topics({requests: PARTITIONS})
        cluster.create_topics({replies: REPLY_PARTITIONS, dead_letters: 1}, stamped)
        try:
            yield made
        finally:
            for member in made.members:
                member.process.kill()
                member.process.join()
