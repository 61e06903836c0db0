"""A stand-in for the service: answers each request on a mock cluster with what a test's function makes of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from confluent_kafka import Consumer, Producer, TopicPartition

from consumer.stream.mock_cluster import CLIENT_SETTINGS
from consumer.wire.headers import Headers, RequestHeaders, reply_headers

Answer = Callable[[bytes, bytes | None], list[bytes]]
"""Value and key of a request to the values of its replies: none, one, or repeats."""


@contextmanager
def echo_service(bootstrap_servers: str, topic: str, answer: Answer) -> Iterator[list[RequestHeaders]]:
    """Serve ``topic`` (one partition) in a thread; gives the headers of the requests seen so far."""
    seen: list[RequestHeaders] = []
    stop = threading.Event()
    options = {"bootstrap.servers": bootstrap_servers, "group.id": "echo", **CLIENT_SETTINGS}

    def serve() -> None:
        consumer, producer = Consumer(options), Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not stop.is_set():
            message = consumer.poll(0.02)
            if message is None or message.error():
                continue
            headers = RequestHeaders.parse(cast(Headers, message.headers() or ()))
            seen.append(headers)
            offset = message.offset() or 0
            for value in answer(message.value() or b"", message.key()):
                producer.produce(
                    headers.reply_topic or "",
                    value=value,
                    key=message.key(),
                    partition=-1 if headers.reply_partition is None else headers.reply_partition,
                    headers=[*reply_headers(headers, topic=topic, partition=0, offset=offset, catalog="c1")],
                )
            producer.poll(0)
        producer.flush(5)
        consumer.close()

    thread = threading.Thread(target=serve, name="echo-service")
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
