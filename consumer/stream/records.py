"""A message of the client as a record that the rest of the code knows."""

import time

from confluent_kafka import Message

from consumer.stream.errors import StreamError
from consumer.stream.headers import headers_of
from consumer.wire.dead_letter import SourceRecord


def record_of(message: Message) -> SourceRecord:
    """To be called once for each message, and only without ``error()``. Now stands for a missing timestamp."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise StreamError("the client delivered a record without its place")
    _, timestamp_ms = message.timestamp()
    headers = headers_of(message)
    return SourceRecord(
        topic,
        partition,
        offset,
        timestamp_ms if timestamp_ms >= 0 else round(time.time() * 1000),
        message.key(),
        message.value(),
        headers or (),
        headers is not None,
    )
