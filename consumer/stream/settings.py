"""Settings of the Kafka side and what they become for librdkafka. Options that the guarantees rest on are fixed."""

import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from consumer.stream.oauth import OAUTHBEARER, OAuthSettings
from consumer.wire.headers import is_topic
from consumer.wire.settings import TopicDefaults

Option = str | int | float | bool
ClientOptions = dict[str, Any]
"""Options of one client, callbacks among them."""
GroupProtocol = Literal["consumer", "classic"]
"""KIP-848's, where the brokers assign the partitions, and the one before it."""

CRITICAL_ONLY: Final = 2
"""``log_level`` of clients whose errors are told by their callers."""
CONNECT_S: Final = 10.0
"""For so long a look-up waits for the brokers."""

_FIXED_CONSUMER: Final[Mapping[str, Option]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
}
_ASSIGNOR: Final[Mapping[str, Option]] = {"partition.assignment.strategy": "cooperative-sticky"}
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
    "group.protocol": "group_protocol",
    "group.instance.id": "instance_id",
    "session.timeout.ms": "session_timeout_ms",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "max.poll.interval.ms": "max_poll_interval_ms",
    "message.timeout.ms": "message_timeout_ms",
    "delivery.timeout.ms": "message_timeout_ms",
    "message.max.bytes": "max_message_bytes",
    "batch.size": "batch_bytes",
    "transactional.id": "transactional_id",
    "transaction.timeout.ms": "transaction_timeout_ms",
}
"""Options that have a setting, under all of librdkafka's names for them."""
_COMMITTED: Final = "read_committed"
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
    delivery: Literal["at-least-once", "exactly-once"] = Field(
        "at-least-once", description="exactly-once: replies and offsets in one transaction, for read_committed readers"
    )
    transactional_id: str | None = Field(
        None,
        min_length=1,
        description="name of this process alone, for exactly-once: started again under it, it ends at once what it "
        "left open when it was killed; by default a new name at every start",
    )
    transaction_timeout_ms: int = Field(
        10_000, ge=1_000, description="how long the transaction of a killed process holds read_committed readers up"
    )
    offset_reset: Literal["earliest", "latest"] = Field(
        "earliest", description="where a partition starts whose committed offset is missing or gone; counted"
    )

    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        "plaintext", description="how brokers are reached"
    )
    sasl_mechanism: str | None = Field(None, description="for example SCRAM-SHA-512, or OAUTHBEARER")
    sasl_username: str | None = Field(None, description="SASL user")
    sasl_password: SecretStr | None = Field(None, description="SASL password; never logged")
    ssl_ca_location: str | None = Field(None, description="file of CA certificates")
    oauth: OAuthSettings = Field(default_factory=OAuthSettings, description="where OAUTHBEARER tokens come from")

    group_protocol: Literal["auto", "consumer", "classic"] = Field(
        "auto", description="consumer: KIP-848; auto: that, if the brokers allow the group heartbeat_interval_ms"
    )
    instance_id: str | None = Field(
        None, min_length=1, description="static membership: a restart moves no partition; only with classic"
    )
    session_timeout_ms: int = Field(45_000, ge=1_000, description="silence after which the group drops this member")
    consumer_session_timeout_ms: int = Field(
        15_000, ge=1_000, description="the same with the consumer protocol, whose members outlive an outage of brokers"
    )
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
        if self.instance_id is not None and self.group_protocol != "classic":
            raise ValueError(
                "instance_id needs group_protocol classic: with the consumer protocol a process that was killed could "
                "not come back under its name before the group has dropped it"
            )
        if self.message_timeout_ms <= self.brokers_down_limit_s * 1000:
            raise ValueError("message_timeout_ms must be above brokers_down_limit_s, or an outage loses replies early")
        reading: Mapping[str, Option] = {"isolation.level": _COMMITTED, **self.client_options, **self.consumer_options}
        if self.delivery == "exactly-once" and reading["isolation.level"] != _COMMITTED:
            raise ValueError(
                f"exactly-once needs isolation.level {_COMMITTED}: it keeps new owners behind open offsets"
            )
        replies = self._reply_topics
        for topic in self.needed_topics:
            if not is_topic(topic):
                raise ValueError(f"{topic!r} is no topic name")
        if self.dead_letter_topic in replies:
            raise ValueError(
                f"{self.dead_letter_topic} is the topic of dead letters, so it cannot be one of replies too"
            )
        for topic in self.request_topics:
            if topic in replies or topic == self.dead_letter_topic:
                raise ValueError(f"{topic} is written to, so it cannot be a topic of requests too")
        for name in ("client_options", "consumer_options", "producer_options"):
            given: Mapping[str, Option] = getattr(self, name)
            if fixed := sorted(given.keys() & (_FIXED_CONSUMER.keys() | _ASSIGNOR.keys() | _FIXED_PRODUCER.keys())):
                raise ValueError(f"{name}: {', '.join(fixed)} cannot be changed, the delivery guarantees rest on it")
            if repeated := sorted(given.keys() & _OF_SETTINGS.keys()):
                settings = ", ".join(f"{option} is the setting kafka.{_OF_SETTINGS[option]}" for option in repeated)
                raise ValueError(f"{name}: {settings}")
        login = self.sasl_mechanism == OAUTHBEARER
        if self.oauth.given and not login:
            raise ValueError(f"oauth needs sasl_mechanism {OAUTHBEARER}")
        if login and not self.oauth.given and not any("oauthbearer" in name for name in self.client_options):
            raise ValueError(f"sasl_mechanism {OAUTHBEARER} needs one of oauth.token_file, token_command, token_url")
        return self

    @property
    def request_topics(self) -> tuple[str, ...]:
        """Every topic that requests are read from."""
        return tuple({self.request_topic: None, **dict.fromkeys(self.topics)})

    @property
    def needed_topics(self) -> tuple[str, ...]:
        """Every topic that has to be there."""
        return (*self.request_topics, *sorted(self._reply_topics), self.dead_letter_topic)

    @property
    def _reply_topics(self) -> set[str]:
        return {self.reply_topic, *(each.reply_topic for each in self.topics.values() if each.reply_topic)}

    def connection(self) -> ClientOptions:
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
            **self.oauth.client_options(),
            **self.client_options,
        }

    def consumer(self, protocol: GroupProtocol) -> ClientOptions:
        """librdkafka options of the intake's consumer. What the brokers decide with KIP-848 may not be given then."""
        classic: dict[str, Option] = {
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": self.heartbeat_interval_ms,
            **({} if self.instance_id is None else {"group.instance.id": self.instance_id}),
            **_ASSIGNOR,
        }
        return {
            **self.connection(),
            "group.id": self.group_id,
            "group.protocol": protocol,
            "max.poll.interval.ms": self.max_poll_interval_ms,
            "statistics.interval.ms": 2_000,
            "topic.metadata.refresh.interval.ms": 10_000,  # when a classic member sees new partitions; else 5 min
            **self.consumer_options,
            **(classic if protocol == "classic" else {}),
            **_FIXED_CONSUMER,
        }

    def producer(self) -> ClientOptions:
        """librdkafka options of the producer of replies and dead letters."""
        return {
            **self.connection(),
            "linger.ms": 5,  # as long as nobody flushes, which the reply thread does when it has handed over all it has
            "partitioner": "murmur2_random",
            "message.timeout.ms": self.message_timeout_ms,
            "message.max.bytes": self.max_message_bytes,
            "batch.size": self.batch_bytes,
            "topic.metadata.propagation.max.ms": 2_000,
            **self.producer_options,
            **_FIXED_PRODUCER,
        }

    def transactional_producer(self) -> ClientOptions:
        """The same for one that sends them in transactions with the group's offsets."""
        name = self.transactional_id or f"{self.group_id}-{uuid.uuid4()}"
        return {
            # The next transaction waits for the last one's markers, and is tried again after this: by default 100 ms.
            "retry.backoff.ms": 2,
            # Bootstrapping anew drops the coordinator, and calls may wait for it for ever (librdkafka#5511).
            "metadata.recovery.strategy": "none",
            **self.producer(),
            "transactional.id": name,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "message.timeout.ms": min(self.message_timeout_ms, self.transaction_timeout_ms),
            # The time-out of send_offsets_to_transaction is ignored: this bounds it.
            "socket.timeout.ms": min(5_000, self.transaction_timeout_ms // 2),
        }
