"""Commits of offsets, and what becomes of them."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from consumer.stream.errors import COMMIT_MAY_FAIL, StreamError, name_of, reason_of
from consumer.stream.partition import Partition

log = logging.getLogger(__name__)


class CommitListener(Protocol):
    """``ConsumerListener``, as far as commits go."""

    def committed(self, offsets: Mapping[Partition, int]) -> None: ...

    def commit_failed(self, code: str) -> None: ...


class OffsetCommits:
    """``alive`` hears of answers. ``unanswered``: commits on their way; ``fatal``: after this one none will pass."""

    def __init__(self, listener: CommitListener, alive: Callable[[], None]) -> None:
        self.unanswered = 0
        self.fatal: KafkaError | None = None
        self._listener = listener
        self._alive = alive

    def store(self, consumer: Consumer, partition: Partition, offset: int) -> bool:
        """Whether ``offset`` may be committed. False: the partition is not ours, or not yet."""
        try:
            consumer.store_offsets(offsets=[TopicPartition(*partition, offset)])
        except KafkaException as error:
            if error.args[0].code() in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                return False
            raise StreamError(f"offset {offset} of {partition} was not stored: {reason_of(error)}") from error
        return True

    def commit(self, consumer: Consumer, offsets: Mapping[Partition, int]) -> None:
        """Commit what is still ours, without waiting: that would have no time-out. The listener hears the end.

        The offsets are named: of those that it stores the client commits none below an earlier one, as after a reset.
        """
        ours = [
            TopicPartition(*partition, offset)
            for partition, offset in offsets.items()
            if self.store(consumer, partition, offset)
        ]
        if not ours:
            return
        try:
            consumer.commit(offsets=ours, asynchronous=True)
            self.unanswered += 1
        except KafkaException as error:
            self._failed(error.args[0])

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The client's ``on_commit``."""
        self.unanswered = max(0, self.unanswered - 1)
        if error is not None:
            self._failed(error)
            return
        for each in partitions:
            if each.error is not None:
                self._failed(each.error)
        self._alive()
        self._listener.committed(
            {Partition(each.topic, each.partition): each.offset for each in partitions if each.error is None}
        )

    def _failed(self, error: KafkaError) -> None:
        if error.code() == KafkaError._NO_OFFSET:
            return
        log.warning("commit: %s: %s", name_of(error), error.str())
        self._listener.commit_failed(name_of(error))
        if error.code() not in COMMIT_MAY_FAIL and not error.retriable():
            self.fatal = error
