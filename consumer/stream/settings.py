"""Settings of the Kafka side and what they become for librdkafka. Options that the guarantees rest on are fixed."""

from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from consumer.wire.headers import is_topic
from consumer.wire.settings import TopicDefaults

Option = str | int | float | bool

_FIXED_CONSUMER: Final[Mapping[str, Option]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "partition.assignment.strategy": "cooperative-sticky",
    "allow.auto.create.topics": False,
}
_FIXED_PRODUCER: Final[Mapping[str, Option]] = {
    "enable.idempotence": True,
    "acks": "all",
    "delivery.report.only.error": False,
    "allow.auto.create.topics": False,
}
_OF_SETTINGS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password",
    "ssl.ca.location": "ssl_ca_location",
    "group.id": "group_id",
    "session.timeout.ms": "session_timeout_ms",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "max.poll.interval.ms": "max_poll_interval_ms",
    "message.timeout.ms": "message_timeout_ms",
    "delivery.timeout.ms": "message_timeout_ms",
    "message.max.bytes": "max_message_bytes",
    "batch.size": "batch_bytes",
}
"""Options that have a setting, under all of librdkafka's names for them."""
_COMMON: Final[Mapping[str, Option]] = {
    "socket.nagle.disable": True,
    "socket.keepalive.enable": True,
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 2_000,
}


class KafkaSettings(BaseModel):
    """Brokers, topics, group and the limits after which a broken connection ends the process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1, description="host:port of brokers, comma separated")
    group_id: str = Field("recallstream", min_length=1, description="consumer group; its members share the partitions")
    request_topic: str = Field("recall.requests", min_length=1, description="topic that requests are read from")
    topics: dict[str, TopicDefaults] = Field(
        {}, description="more request topics, each with defaults of its own: see docs/protocol.md"
    )
    reply_topic: str = Field("recall.replies", min_length=1, description="topic of replies to requests that name none")
    dead_letter_topic: str = Field("recall.dead-letters", min_length=1, description="topic of unservable records")
    reply_topics_allowed: tuple[str, ...] = Field(
        (), description="other topics that a request may name: exact names, or prefixes written with a final *"
    )
    offset_reset: Literal["earliest", "latest"] = Field(
        "earliest", description="where a partition starts whose committed offset is missing or gone; counted"
    )

    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        "plaintext", description="how brokers are reached"
    )
    sasl_mechanism: str | None = Field(None, description="for example SCRAM-SHA-512")
    sasl_username: str | None = Field(None, description="SASL user")
    sasl_password: SecretStr | None = Field(None, description="SASL password; never logged")
    ssl_ca_location: str | None = Field(None, description="file of CA certificates")

    session_timeout_ms: int = Field(45_000, ge=1_000, description="silence after which the group drops this member")
    heartbeat_interval_ms: int = Field(1_000, ge=100, description="also how long a moved partition stands still")
    max_poll_interval_ms: int = Field(60_000, ge=1_000, description="longest pause between two polls")
    message_timeout_ms: int = Field(90_000, ge=1_000, description="a reply undelivered for so long ends the process")
    max_message_bytes: int = Field(1_000_000, ge=1_000, description="largest reply or dead letter with its headers")
    batch_bytes: int = Field(
        900_000, ge=1_000, description="largest record batch; under every reply topic's max.message.bytes"
    )
    brokers_down_limit_s: float = Field(60.0, gt=0, description="outage of all brokers that ends the process")
    authentication_limit_s: float = Field(30.0, gt=0, description="time of failed log-ins that ends the process")

    client_options: dict[str, Option] = Field({}, description="more librdkafka options for both clients")
    consumer_options: dict[str, Option] = Field({}, description="more librdkafka options for the consumer")
    producer_options: dict[str, Option] = Field({}, description="more librdkafka options for the producer")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_poll_interval_ms < self.session_timeout_ms:
            raise ValueError("max_poll_interval_ms must not be below session_timeout_ms")
        if self.message_timeout_ms <= self.brokers_down_limit_s * 1000:
            raise ValueError("message_timeout_ms must be above brokers_down_limit_s, or an outage loses replies early")
        outgoing = {self.reply_topic, self.dead_letter_topic, *(each.reply_topic for each in self.topics.values())}
        for topic in self.request_topics:
            if not is_topic(topic):
                raise ValueError(f"{topic!r} is no topic name")
            if topic in outgoing:
                raise ValueError(f"{topic} is written to, so it cannot be a topic of requests too")
        for name in ("client_options", "consumer_options", "producer_options"):
            given: Mapping[str, Option] = getattr(self, name)
            if fixed := sorted(given.keys() & (_FIXED_CONSUMER.keys() | _FIXED_PRODUCER.keys())):
                raise ValueError(f"{name}: {', '.join(fixed)} cannot be changed, the delivery guarantees rest on it")
            if repeated := sorted(given.keys() & _OF_SETTINGS.keys()):
                settings = ", ".join(f"{option} is the setting kafka.{_OF_SETTINGS[option]}" for option in repeated)
                raise ValueError(f"{name}: {settings}")
        return self

    @property
    def request_topics(self) -> tuple[str, ...]:
        """Every topic that requests are read from."""
        return tuple({self.request_topic: None, **dict.fromkeys(self.topics)})

    def connection(self) -> dict[str, Option]:
        """What every client of this cluster needs to connect; holds the password in clear."""
        optional = {
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password.get_secret_value() if self.sasl_password else None,
            "ssl.ca.location": self.ssl_ca_location,
        }
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            **_COMMON,
            **{name: value for name, value in optional.items() if value is not None},
            **self.client_options,
        }

    def consumer(self) -> dict[str, Option]:
        """librdkafka options of the intake's consumer."""
        return {
            **self.connection(),
            "group.id": self.group_id,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": self.heartbeat_interval_ms,
            "max.poll.interval.ms": self.max_poll_interval_ms,
            "statistics.interval.ms": 2_000,
            **self.consumer_options,
            **_FIXED_CONSUMER,
        }

    def producer(self) -> dict[str, Option]:
        """librdkafka options of the producer of replies and dead letters."""
        return {
            **self.connection(),
            "linger.ms": 0,
            "partitioner": "murmur2_random",
            "message.timeout.ms": self.message_timeout_ms,
            "message.max.bytes": self.max_message_bytes,
            "batch.size": self.batch_bytes,
            "topic.metadata.propagation.max.ms": 2_000,
            **self.producer_options,
            **_FIXED_PRODUCER,
        }
