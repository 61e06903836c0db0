"""What each request topic gives to the requests that leave something out."""

from collections.abc import Mapping
from dataclasses import dataclass

from consumer.stream.settings import KafkaSettings
from consumer.wire.settings import RecallDefaults

_OF_BROKERS = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")


@dataclass(frozen=True, slots=True)
class TopicRules:
    """``reply_topic``: for requests that name none."""

    defaults: RecallDefaults
    reply_topic: str


def rules_of(kafka: KafkaSettings, defaults: RecallDefaults) -> Mapping[str, TopicRules]:
    """By topic. Raises ValueError for defaults of a topic that contradict each other."""
    own = {
        topic: TopicRules(each.over(topic, defaults), each.reply_topic or kafka.reply_topic)
        for topic, each in kafka.topics.items()
    }
    return {kafka.request_topic: TopicRules(defaults, kafka.reply_topic)} | own


def reply_topics(kafka: KafkaSettings) -> tuple[str, ...]:
    """Every topic that a reply may go to, as exact names and prefixes that end in ``*``."""
    own = (each.reply_topic for each in kafka.topics.values() if each.reply_topic is not None)
    return kafka.reply_topic, *own, *kafka.reply_topics_allowed


def closed_topics(kafka: KafkaSettings) -> frozenset[str]:
    """Where no reply may go, though a prefix in ``reply_topics_allowed`` covers it: it would be read as a request, or
    the brokers keep it for themselves.
    """
    return frozenset({*kafka.request_topics, kafka.dead_letter_topic, *_OF_BROKERS})
