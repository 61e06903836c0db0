"""Messages of the client as records that the rest of the code knows."""

import time
from collections.abc import Sequence

from confluent_kafka import Message

from consumer.stream.errors import StreamError
from consumer.stream.headers import headers_of
from consumer.wire.dead_letter import SourceRecord


def records_of(messages: Sequence[Message]) -> list[SourceRecord]:
    """To be called once for each message, and only without ``error()``. Now stands for a missing timestamp."""
    records: list[SourceRecord] = []
    for message in messages:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or offset is None:
            raise StreamError("the client delivered a record without its place")
        _, timestamp_ms = message.timestamp()
        if timestamp_ms < 0:
            timestamp_ms = round(time.time() * 1000)
        key, value, headers = message.key(), message.value(), headers_of(message)
        readable = headers is not None
        records.append(SourceRecord(topic, partition, offset, timestamp_ms, key, value, headers or (), readable))
    return records


def record_of(message: Message) -> SourceRecord:
    """The same for one."""
    return records_of((message,))[0]
