"""Kafka under the request-reply client: a producer of requests, and one thread that owns the consumer of replies."""

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from consumer.stream.errors import reason_of
from consumer.stream.headers import headers_of
from consumer.stream.settings import CONNECT_S, CRITICAL_ONLY, KafkaSettings, Option
from consumer.stream.unreadable import UnreadableRecords
from consumer.wire.headers import Headers
from engine.errors import RecallstreamError

log = logging.getLogger(__name__)

_POLL_S: Final = 0.05
_FLUSH_S: Final = 2.0
_HOPELESS: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
"""Errors after which no reply can come; librdkafka recovers from the others by itself."""


class TransportError(RecallstreamError):
    """Kafka cannot be reached, refuses this client, or did not take a request."""


class ClientTransport:
    """Sends requests, and hands every reply's headers and value to ``on_reply``.

    The reply topic is read by assignment, from where it ended during ``start``, not as a group: clients may share it.
    ``on_failure`` is called once if the connection is lost for good. Callbacks come from the transport's own thread.
    Raises ``TransportError`` if the settings are refused.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        reply_partition: int | None,
        on_reply: Callable[[Headers, bytes | None], None],
        on_failure: Callable[[TransportError], None],
    ) -> None:
        self._kafka = kafka
        self._reply_partition = reply_partition
        self._on_reply = on_reply
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._failure: TransportError | None = None
        self._trouble = ""
        self._noted: set[int] = set()
        self._unreadable = UnreadableRecords()
        try:
            self._producer = Producer(self._producer_options())
        except KafkaException as error:
            raise TransportError(f"kafka: {reason_of(error)}") from error
        self._thread = threading.Thread(target=self._run, name="recall-client", daemon=True)

    def start(self) -> None:
        """Wait until replies are being read. Raises ``TransportError``."""
        self._thread.start()
        self._ready.wait()
        if self._failure:
            raise self._failure

    def send(
        self,
        key: bytes | None,
        value: bytes,
        headers: Headers,
        on_undelivered: Callable[[TransportError], None],
        on_delivered: Callable[[], None] | None = None,
    ) -> None:
        """Hand one record to Kafka's client without waiting for its delivery. Raises ``TransportError``."""

        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                on_undelivered(TransportError(f"not delivered to {self._kafka.request_topic}: {error.str()}"))
            elif on_delivered is not None:
                on_delivered()

        try:
            self._producer.produce(
                self._kafka.request_topic, value=value, key=key, headers=list(headers), on_delivery=report
            )
        except (BufferError, KafkaException) as error:
            raise TransportError(f"the request was not sent: {reason_of(error)}") from error

    def close(self) -> None:
        """Stop reading, and give requests that are still queued a moment to leave."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            consumer = Consumer(self._consumer_options())
            try:
                consumer.assign(self._ends(consumer))
                self._ready.set()
                self._serve(consumer)
                self._producer.flush(_FLUSH_S)
            finally:
                consumer.close()
        except TransportError as error:
            self._fail(error)
        except Exception as error:  # whatever ends this thread, nobody may be left waiting for it
            self._fail(TransportError(f"kafka: {reason_of(error)}"))

    def _serve(self, consumer: Consumer) -> None:
        while not self._stop.is_set():
            self._producer.poll(0)
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._on_reply(headers_of(message) or (), message.value())
            elif self._unreadable.note(error, message.topic(), message.partition(), message.offset()):
                for record in self._unreadable.skip(consumer, paused=False):
                    log.warning("reading replies: %s", record.fault)
            elif error.fatal() or error.code() in _HOPELESS:
                raise TransportError(f"replies cannot be read: {error.str()}")
            else:
                log.warning("reading replies: %s", error.str())

    def _fail(self, failure: TransportError) -> None:
        self._failure = failure
        if self._ready.is_set():
            self._on_failure(failure)
        self._ready.set()

    def _ends(self, consumer: Consumer) -> list[TopicPartition]:
        """Every partition to read, at its present end: resolved now, so that no reply from here on is missed."""
        topic = self._kafka.reply_topic
        try:
            found = consumer.list_topics(topic, timeout=CONNECT_S).topics[topic]
        except KafkaException as error:
            consumer.poll(0)  # runs error_cb, which knows more than the time-out
            raise TransportError(
                f"cannot reach Kafka at {self._kafka.bootstrap_servers}: {self._trouble or reason_of(error)}"
            ) from error
        if found.error is not None:
            raise TransportError(f"reply topic {topic}: {found.error.str()}")
        partitions = sorted(found.partitions) if self._reply_partition is None else [self._reply_partition]
        if not set(partitions) <= found.partitions.keys():
            raise TransportError(f"reply topic {topic} has no partition {self._reply_partition}")
        return [
            TopicPartition(topic, partition, consumer.get_watermark_offsets(at, timeout=CONNECT_S)[1])
            for partition in partitions
            for at in (TopicPartition(topic, partition),)
        ]

    def _producer_options(self) -> dict[str, Option | Callable[[KafkaError], None]]:
        return {
            **self._kafka.producer(),
            "linger.ms": self._kafka.producer_options.get("linger.ms", 0),  # nobody flushes: a request leaves at once
            "log_level": CRITICAL_ONLY,
            "error_cb": self._note,
        }

    def _consumer_options(self) -> dict[str, Option | Callable[[KafkaError], None]]:
        return {
            **self._kafka.connection(),
            "isolation.level": "read_committed",
            **self._kafka.consumer_options,
            "group.id": f"recall-client-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "allow.auto.create.topics": False,
            "log_level": CRITICAL_ONLY,
            "error_cb": self._note,
        }

    def _note(self, error: KafkaError) -> None:
        """librdkafka tells its trouble here at every attempt: it is logged once for each kind."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # the brokers' own errors say why
        if error.code() not in self._noted:
            self._noted.add(error.code())
            log.warning("Kafka: %s", error.str())
        self._trouble = error.str()
