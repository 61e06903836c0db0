"""The consumer of item changes: a group of its own, which begins where the catalog says that it stands."""

import logging
import time
from collections.abc import Callable, Mapping
from threading import Event
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from consumer.stream.errors import StreamError, reason_of, unless_it_heals
from consumer.stream.partition import Partition
from consumer.stream.records import record_of
from consumer.stream.settings import KafkaSettings
from consumer.stream.unreadable import UnreadableRecords
from consumer.wire.dead_letter import SourceRecord

_SLICE_S: Final = 0.1
_COMMITTED_S: Final = 10.0

log = logging.getLogger(__name__)


class ItemChanges:
    """Reads ``topic`` as the group of the settings. One thread.

    ``begin`` says where to begin with some partitions, of which it is told where the group left them, at first 0; if it
    says nothing of one, that is where. Raises StreamError for what does not heal by itself.
    """

    def __init__(
        self, kafka: KafkaSettings, topic: str, begin: Callable[[Mapping[int, int]], Mapping[int, int]]
    ) -> None:
        self._topic, self._begin = topic, begin
        self._next: dict[int, int] = {}
        self._unreadable = UnreadableRecords()
        try:
            self._consumer = Consumer(
                {
                    **kafka.consumer("classic"),
                    "auto.offset.reset": "earliest",  # changes that were never read are not to be missed
                    "enable.auto.offset.store": True,
                },
                logger=log,
            )
            self._consumer.subscribe([topic], on_assign=self._start, on_revoke=self._forget, on_lost=self._forget)
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
                if self._unreadable.note(error, self._topic, message.partition(), message.offset()):
                    self._pass_over()
                else:
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

    def go_back(self, places: Mapping[int, int]) -> None:
        """Read again from there on, by partition. Those that are others' by now are left to them."""
        for partition, offset in places.items():
            self._next.pop(partition, None)
            self._unreadable.begin({Partition(self._topic, partition): offset})
            try:
                self._consumer.seek(TopicPartition(self._topic, partition, offset))
            except KafkaException as error:
                log.info("%s %d is not read again here: %s", self._topic, partition, error)

    def close(self) -> None:
        self._consumer.close()

    def _start(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            committed = consumer.committed(partitions, timeout=_COMMITTED_S)
            begins = self._begin({each.partition: max(each.offset, 0) for each in committed})
        except KafkaException as error:  # then the client asks until it gets an answer
            log.info("%s: what is committed is not known yet: %s", self._topic, error)
            begins = {}
        for each in partitions:
            each.offset = begins.get(each.partition, each.offset)
        self._unreadable.begin({Partition(self._topic, each.partition): each.offset for each in partitions})
        consumer.incremental_assign(partitions)

    def _forget(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop(each.partition, None)
            self._unreadable.forget([Partition(self._topic, each.partition)])

    def _pass_over(self) -> None:
        for record in self._unreadable.skip(self._consumer, paused=False):
            log.warning("refused: %s %d @ %d: %s", record.topic, record.partition, record.offset, record.fault)
            self._next[record.partition] = record.offset + 1

    def _judge(self, error: KafkaError) -> None:
        unless_it_heals(error, self._topic)
        log.warning("%s: %s", self._topic, error.str())
