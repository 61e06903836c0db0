"""A topic read from its beginning to where it ends now, by assignment: no group is joined, nothing is committed."""

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from consumer.stream.errors import StreamError, reason_of, unless_it_heals
from consumer.stream.partition import Partition
from consumer.stream.records import record_of
from consumer.stream.settings import CONNECT_S, CRITICAL_ONLY, KafkaSettings
from consumer.stream.unreadable import UnreadableRecords
from consumer.wire.dead_letter import SourceRecord

Span = tuple[int, int]
"""First offset, and the one after the last."""

_SILENCE_S: Final = 30.0
_POLL_S: Final = 0.5

log = logging.getLogger(__name__)


class TopicReader:
    """``spans``: what every partition holds at the moment that this is made. One thread. Raises StreamError."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._trouble: str | None = None
        self._unreadable = UnreadableRecords()
        try:
            self._consumer = Consumer(
                {
                    **kafka.connection(),
                    **kafka.consumer_options,
                    "group.id": f"recallstream-reader-{uuid.uuid4()}",  # required, never joined
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "enable.partition.eof": True,
                    "allow.auto.create.topics": False,
                    "log_level": CRITICAL_ONLY,
                    "error_cb": self._note,
                },
                logger=log,
            )
        except KafkaException as error:
            raise StreamError(f"kafka: {reason_of(error)}") from error
        try:
            self.spans: Mapping[int, Span] = self._look_up(kafka.bootstrap_servers)
        except BaseException:
            self.close()
            raise

    def records(self, within: Mapping[int, Span] | None = None) -> Iterator[SourceRecord]:
        """Every record of ``spans``, or of the part of them that lies ``within``; partitions in no certain order."""
        spans = self.spans if within is None else self._cut(within)
        open_ends = {partition: end for partition, (first, end) in spans.items() if first < end}
        self._consumer.assign([TopicPartition(self._topic, each, spans[each][0]) for each in open_ends])
        self._unreadable.begin({Partition(self._topic, each): spans[each][0] for each in open_ends})
        heard = time.monotonic()
        while open_ends:
            message = self._consumer.poll(_POLL_S)
            if message is None:
                if time.monotonic() - heard > _SILENCE_S:
                    raise StreamError(f"{self._topic}: no answer for {_SILENCE_S:.0f} s: {self._trouble or 'silence'}")
                continue
            heard = time.monotonic()
            if error := message.error():
                if error.code() == KafkaError._PARTITION_EOF:
                    open_ends.pop(message.partition() or 0, None)
                    continue
                if not self._unreadable.note(error, self._topic, message.partition(), message.offset()):
                    unless_it_heals(error, self._topic)
                    continue
                (record,) = self._unreadable.skip(self._consumer, paused=False)
            else:
                record = record_of(message)
            end = open_ends.get(record.partition)
            if end is None:
                continue
            if record.offset + 1 >= end:
                del open_ends[record.partition]
            if record.offset < end:
                yield record

    def close(self) -> None:
        self._consumer.close()

    def _cut(self, within: Mapping[int, Span]) -> dict[int, Span]:
        return {
            partition: (max(first, within[partition][0]), min(end, within[partition][1]))
            for partition, (first, end) in self.spans.items()
            if partition in within
        }

    def _look_up(self, servers: str) -> dict[int, Span]:
        try:
            found = self._consumer.list_topics(self._topic, timeout=CONNECT_S).topics[self._topic]
            if found.error is not None:
                raise StreamError(f"topic {self._topic}: {found.error.str()}")
            return {each: self._watermarks(each) for each in sorted(found.partitions)}
        except KafkaException as error:
            self._consumer.poll(0)  # runs error_cb, which knows more than the time-out
            reason = self._trouble or reason_of(error)
            raise StreamError(f"cannot reach Kafka at {servers}: {reason}") from error

    def _watermarks(self, partition: int) -> Span:
        low, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=CONNECT_S)
        return low, high

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # the brokers' own errors say why
            self._trouble = error.str()
