"""What an error of the Kafka client means for this process. An unknown code ends it: nothing is swallowed."""

from confluent_kafka import KafkaError

from engine.errors import RecallstreamError


class StreamError(RecallstreamError):
    """The stream cannot be served any more: the process ends without committing what is not confirmed."""


def is_fatal(error: KafkaError) -> bool:
    """A fenced consumer says ``_FATAL`` with ``fatal()`` false, a fenced producer the reverse."""
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


def name_of(error: KafkaError) -> str:
    """The code's short name, for metrics: ``_ALL_BROKERS_DOWN``."""
    name: str = error.name()
    return name


def reason_of(error: BaseException) -> str:
    """The text of a client error without its class and numbers."""
    if error.args and isinstance(error.args[0], KafkaError):
        return error.args[0].str()
    return str(error)


HEALS_BY_ITSELF = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""Errors that ``Consumer.poll`` shows and the client recovers from; a missing topic is picked up once it exists."""


def unless_it_heals(error: KafkaError, topic: str) -> None:
    """Raises StreamError for an error of reading ``topic`` that the client does not recover from."""
    if is_fatal(error) or error.code() not in HEALS_BY_ITSELF:
        raise StreamError(f"{topic} cannot be read: {name_of(error)}: {error.str()}")


TOPIC_MISSING = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})

COMMIT_MAY_FAIL = frozenset(
    {
        KafkaError._NO_OFFSET,
        KafkaError._STATE,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._DESTROY,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""A commit refused so is tried again with the next one, or its partitions are another member's now."""

OUTAGE = frozenset({KafkaError._ALL_BROKERS_DOWN})
AUTHENTICATION = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.ILLEGAL_SASL_STATE}
)
