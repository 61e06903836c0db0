"""The consumer of item changes: a group of its own, offsets committed when the changes are published."""

import logging
import time
from threading import Event
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from consumer.stream.errors import StreamError, reason_of, unless_it_heals
from consumer.stream.records import record_of
from consumer.stream.settings import KafkaSettings
from consumer.wire.dead_letter import SourceRecord

_SLICE_S: Final = 0.1

log = logging.getLogger(__name__)


class ItemChanges:
    """Reads ``topic`` as the group of the settings, from its beginning the first time. One thread.

    Raises StreamError for what does not heal by itself.
    """

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._next: dict[int, int] = {}
        try:
            self._consumer = Consumer(
                {
                    **kafka.consumer("classic"),
                    "auto.offset.reset": "earliest",  # changes that were never read are not to be missed
                    "enable.auto.offset.store": True,
                },
                logger=log,
            )
            self._consumer.subscribe([topic], on_revoke=self._forget, on_lost=self._forget)
        except KafkaException as error:
            raise StreamError(f"kafka: {reason_of(error)}") from error

    def read(self, seconds: float, limit: int, stop: Event) -> list[SourceRecord]:
        """Records of at most so many seconds from the first one on, ``limit`` at most; none if none came in them."""
        records: list[SourceRecord] = []
        end = time.monotonic() + seconds
        while len(records) < limit and not stop.is_set() and (left := end - time.monotonic()) > 0:
            message = self._consumer.poll(min(left, _SLICE_S))
            if message is None:
                continue
            if error := message.error():
                self._judge(error)
                continue
            if not records:
                end = time.monotonic() + seconds
            records.append(record_of(message))
            self._next[records[-1].partition] = records[-1].offset + 1
        return records

    def commit(self) -> None:
        """Commit what was read. Partitions that went to another member meanwhile are read again there."""
        if not self._next:
            return
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in self._next.items()]
        self._next.clear()
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            log.warning("%s: offsets are not committed, the changes will be read again: %s", self._topic, error)

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forget(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop(each.partition, None)

    def _judge(self, error: KafkaError) -> None:
        unless_it_heals(error, self._topic)
        log.warning("%s: %s", self._topic, error.str())
