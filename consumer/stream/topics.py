"""Which of the topics that a member needs do not exist. The consumer protocol says nothing of a missing one."""

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from consumer.stream.errors import TOPIC_MISSING

ASK_EVERY_S = 5.0
_ANSWER_S: Final = 4.0

log = logging.getLogger(__name__)


class NeededTopics:
    """One thread calls it, nothing in it waits."""

    def __init__(self, client: AdminClient, topics: Iterable[str]) -> None:
        self._client = client
        self._topics = TopicCollection(list(dict.fromkeys(topics)))
        self._asked: dict[str, Future[Any]] = {}
        self._missing: set[str] = set()
        self._due = 0.0

    @property
    def troubles(self) -> tuple[str, ...]:
        """A sentence for each that does not exist."""
        return tuple(f"topic {topic} does not exist" for topic in sorted(self._missing))

    def refresh(self, now: float) -> None:
        """Take in what was answered, and ask anew when it is time. Without an answer all stays as it was."""
        for topic, answer in list(self._asked.items()):
            if answer.done():
                del self._asked[topic]
                error = answer.exception()
                if error is None:
                    self.found([topic])
                elif isinstance(error, KafkaException) and error.args[0].code() in TOPIC_MISSING:
                    self.lack(topic)
        if not self._asked and now >= self._due:
            self._due = now + ASK_EVERY_S
            self._asked = self._client.describe_topics(self._topics, request_timeout=_ANSWER_S)

    def lack(self, topic: str) -> None:
        """The brokers do not know it."""
        if topic not in self._missing:
            log.warning("topic %s does not exist", topic)
            self._missing.add(topic)

    def found(self, topics: Iterable[str]) -> None:
        """They are there."""
        self._missing.difference_update(topics)
