"""What each request topic gives to the requests that leave something out."""

from collections.abc import Mapping
from dataclasses import dataclass

from consumer.stream.settings import KafkaSettings
from consumer.wire.resolve import Resolver
from consumer.wire.settings import RecallDefaults

_OF_BROKERS = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")


@dataclass(frozen=True, slots=True)
class TopicRules:
    """``reply_topic``, and milliseconds until the deadline: for requests that name none."""

    resolver: Resolver
    deadline_ms: int
    max_deadline_ms: int
    reply_topic: str


def rules_of(kafka: KafkaSettings, defaults: RecallDefaults, levels: int) -> Mapping[str, TopicRules]:
    """By topic, for a model of ``levels`` SID levels. Raises ValueError for defaults of a topic that contradict each
    other.
    """
    given = {topic: (each.over(topic, defaults), each.reply_topic) for topic, each in kafka.topics.items()}
    return {
        topic: TopicRules(Resolver(own, levels), own.deadline_ms, own.max_deadline_ms, reply or kafka.reply_topic)
        for topic, (own, reply) in ({kafka.request_topic: (defaults, None)} | given).items()
    }


def reply_topics(kafka: KafkaSettings) -> tuple[str, ...]:
    """Every topic that a reply may go to, as exact names and prefixes that end in ``*``."""
    own = (each.reply_topic for each in kafka.topics.values() if each.reply_topic is not None)
    return kafka.reply_topic, *own, *kafka.reply_topics_allowed


def closed_topics(kafka: KafkaSettings) -> frozenset[str]:
    """Where no reply may go, though a prefix in ``reply_topics_allowed`` covers it: it would be read as a request, or
    the brokers keep it for themselves.
    """
    return frozenset({*kafka.request_topics, kafka.dead_letter_topic, *_OF_BROKERS})
