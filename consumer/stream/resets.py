"""Partitions whose offset is gone: they stand still until they are assigned anew."""

import logging
from collections.abc import Iterable, Iterator

from confluent_kafka import Consumer, KafkaException

from consumer.stream.errors import reason_of
from consumer.stream.partition import Partition
from consumer.stream.starts import OffsetReset, choose_start, start_anew

log = logging.getLogger(__name__)


class OffsetResets:
    """Those that still wait for a start. One thread."""

    def __init__(self, policy: OffsetReset) -> None:
        self._policy = policy
        self._waiting: dict[Partition, int | None] = {}

    def note(self, partition: Partition, old: int | None) -> None:
        """The client has reset this one; ``old``: the offset that it could not use."""
        self._waiting[partition] = old

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These are ours no more."""
        for partition in partitions:
            self._waiting.pop(partition, None)

    def restart(self, consumer: Consumer, *, paused: bool) -> Iterator[tuple[Partition, int, int]]:
        """Assign each anew where the policy says; gives its start and what that skips."""
        for partition, old in list(self._waiting.items()):
            try:
                start, skipped = choose_start(consumer, partition, old, self._policy)
            except KafkaException as error:
                log.warning("%s[%d]: no offset to start at yet: %s", *partition, reason_of(error))
                return
            log.warning("%s[%d]: no usable committed offset (%s): starts at %d", *partition, old, start)
            del self._waiting[partition]
            start_anew(consumer, partition, start, paused=paused)
            yield partition, start, skipped
