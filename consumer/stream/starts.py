"""Where partitions start that have no usable committed offset: an explicit decision, and what it passes over."""

import logging
from typing import Final, Literal

from confluent_kafka import Consumer, KafkaException, TopicPartition

from consumer.stream.errors import reason_of
from consumer.stream.partition import Partition

OffsetReset = Literal["earliest", "latest"]

_LOOKUP_S: Final = 5.0

log = logging.getLogger(__name__)


def look_up(
    consumer: Consumer, partitions: list[TopicPartition], policy: OffsetReset
) -> tuple[list[TopicPartition], dict[Partition, int]]:
    """The start of each new partition, and what is skipped where no offset was committed.

    Left to the client where the brokers do not say: it asks again, or reports a reset.
    """
    starts: list[TopicPartition] = []
    skipped: dict[Partition, int] = {}
    try:
        for each in consumer.committed(partitions, timeout=_LOOKUP_S):
            if each.offset < 0 and each.error is None:
                partition = Partition(each.topic, each.partition)
                start, skipped[partition] = choose_start(consumer, partition, None, policy)
                each = TopicPartition(*partition, start)
            starts.append(each)
    except KafkaException as error:
        log.warning("no committed offsets for new partitions: %s", reason_of(error))
        return partitions, {}
    if skipped:
        log.info(
            "%d of %d new partitions have no committed offset: they start at the %s one, which skips %d records",
            len(skipped),
            len(starts),
            policy,
            sum(skipped.values()),
        )
    return starts, skipped


def choose_start(consumer: Consumer, partition: Partition, old: int | None, policy: OffsetReset) -> tuple[int, int]:
    """The start that ``policy`` asks for, and how many records lie between ``old`` and it. Raises KafkaException."""
    low, high = consumer.get_watermark_offsets(TopicPartition(*partition), timeout=_LOOKUP_S)
    start = low if policy == "earliest" else high
    return start, max(0, start - (low if old is None else old))


def start_anew(consumer: Consumer, partition: Partition, offset: int, *, paused: bool) -> None:
    """Read an owned partition from ``offset`` on: what the client fetched from elsewhere goes, and seeking is refused
    where it has no position. Raises KafkaException.
    """
    position = [TopicPartition(*partition, offset)]
    consumer.incremental_unassign(position)
    consumer.incremental_assign(position)
    if paused:
        consumer.pause(position)
