"""An embedded Kafka broker: librdkafka's own mock cluster, reached by ctypes in the library that confluent_kafka links.

It serves the demo and the tests. Topics are created up front, each partition keeps about 5 MB, and a waiting fetch is
not woken by new data, so its clients set ``fetch.wait.max.ms`` low (``CLIENT_SETTINGS``). The API is outside
librdkafka's ABI promise: it is tried with ``TRIED_WITH``, and a symbol that is missing raises MockClusterMissingError.
"""

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaError, cimpl

from engine.errors import RecallstreamError

CLIENT_SETTINGS: Final[Mapping[str, int]] = {"fetch.wait.max.ms": 5}
"""librdkafka settings that a consumer of the mock needs for low latency."""

TRIED_WITH: Final = "2.16"
"""The client version that these calls were written for; the lock file pins the same."""

ALL_BROKERS: Final = -1

_PRODUCER: Final = 0
_ERROR_BYTES: Final = 512
_BREATH_S: Final = 0.002
"""After a call: one right behind it can miss the cluster's wake-up and stand for a second."""


class MockClusterError(RecallstreamError):
    """The mock cluster is not there in this librdkafka, or refused a call."""


class MockClusterMissingError(MockClusterError):
    """This librdkafka lacks a call of the mock cluster."""


class Api(IntEnum):
    """Kafka request types whose errors can be injected."""

    PRODUCE = 0
    FETCH = 1
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    CONSUMER_GROUP_HEARTBEAT = 68


@dataclass(frozen=True, slots=True)
class Request:
    """One that a broker got; ``api`` is the number of its type."""

    broker: int
    api: int


_SIGNATURES: Final[Mapping[str, tuple[type | None, tuple[type, ...]]]] = {
    "rd_kafka_conf_new": (ctypes.c_void_p, ()),
    "rd_kafka_conf_set": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
    ),
    "rd_kafka_new": (ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)),
    "rd_kafka_destroy": (None, (ctypes.c_void_p,)),
    "rd_kafka_mock_cluster_new": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int)),
    "rd_kafka_mock_cluster_destroy": (None, (ctypes.c_void_p,)),
    "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "rd_kafka_mock_topic_create": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    ),
    "rd_kafka_mock_partition_set_leader": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32),
    ),
    "rd_kafka_mock_coordinator_set": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32),
    ),
    "rd_kafka_mock_broker_set_down": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32)),
    "rd_kafka_mock_broker_set_up": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32)),
    "rd_kafka_mock_broker_set_rtt": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int)),
    "rd_kafka_mock_push_request_errors_array": (
        None,
        (ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)),
    ),
    "rd_kafka_mock_partition_delete_records": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64),
    ),
    "rd_kafka_mock_topic_set_error": (None, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)),
    "rd_kafka_mock_start_request_tracking": (None, (ctypes.c_void_p,)),
    "rd_kafka_mock_stop_request_tracking": (None, (ctypes.c_void_p,)),
    "rd_kafka_mock_get_requests": (
        ctypes.POINTER(ctypes.c_void_p),
        (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    ),
    "rd_kafka_mock_request_id": (ctypes.c_int32, (ctypes.c_void_p,)),
    "rd_kafka_mock_request_api_key": (ctypes.c_int16, (ctypes.c_void_p,)),
    "rd_kafka_mock_request_destroy_array": (None, (ctypes.c_void_p, ctypes.c_size_t)),
    "rd_kafka_mock_clear_request_errors": (None, (ctypes.c_void_p, ctypes.c_int16)),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, (ctypes.c_void_p, ctypes.c_int32)),
}


def _load() -> ctypes.CDLL:
    # The extension's own handle also resolves the symbols of the librdkafka that it is linked with.
    library = ctypes.CDLL(cimpl.__file__)
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError as missing:
            raise MockClusterMissingError(f"this librdkafka has no {name}: no embedded broker") from missing
        function.restype = result
        function.argtypes = arguments
    return library


class MockCluster:
    """A cluster of ``brokers`` mock brokers on free loopback ports; ``topics`` maps a name to its partition count.

    Broker ids run from 1. Use it as a context manager: leaving it closes every socket.
    """

    def __init__(self, topics: Mapping[str, int] | None = None, *, brokers: int = 1) -> None:
        self._library = _load()
        self._handle: int | None = self._start_client()
        self._cluster: int | None = self._library.rd_kafka_mock_cluster_new(self._handle, brokers)
        if not self._cluster:
            self.close()
            raise MockClusterError(f"librdkafka started no mock cluster of {brokers} brokers")
        self._brokers = brokers
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    def _start_client(self) -> int:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(conf, b"log_level", b"3", error, _ERROR_BYTES)
        handle: int | None = self._library.rd_kafka_new(_PRODUCER, conf, error, _ERROR_BYTES)
        if not handle:
            raise MockClusterError(error.value.decode())
        return handle

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every broker, separated by commas."""
        bootstraps: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._live())
        return bootstraps.decode()

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic; replicated on every broker."""
        self._check(
            self._library.rd_kafka_mock_topic_create(self._live(), name.encode(), partitions, self._brokers),
            f"create topic {name}",
        )

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Move a partition's leadership."""
        self._check(
            self._library.rd_kafka_mock_partition_set_leader(self._live(), topic.encode(), partition, broker),
            f"set the leader of {topic}[{partition}]",
        )

    def set_group_coordinator(self, group: str, broker: int) -> None:
        """Put a consumer group's coordinator on one broker."""
        self._check(
            self._library.rd_kafka_mock_coordinator_set(self._live(), b"group", group.encode(), broker),
            f"set the coordinator of {group}",
        )

    def broker_down(self, broker: int = ALL_BROKERS) -> None:
        """Close the broker's connections and refuse new ones."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._live(), broker), "set a broker down")

    def broker_up(self, broker: int = ALL_BROKERS) -> None:
        """Let a broker that was down accept connections again."""
        self._check(self._library.rd_kafka_mock_broker_set_up(self._live(), broker), "set a broker up")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records below an offset, as retention does."""
        self._check(
            self._library.rd_kafka_mock_partition_delete_records(self._live(), topic.encode(), partition, before),
            f"delete records of {topic}[{partition}]",
        )

    def set_topic_error(self, topic: str, code: int) -> None:
        """Say this error of the topic in all metadata; 0 (``NO_ERROR``): it is well again."""
        self._library.rd_kafka_mock_topic_set_error(self._live(), topic.encode(), code)

    @contextmanager
    def tracked(self) -> Iterator[Callable[[], list[Request]]]:
        """Gives a call for the requests that came since, oldest first."""
        self._library.rd_kafka_mock_start_request_tracking(self._live())
        try:
            yield self._requests
        finally:
            self._library.rd_kafka_mock_stop_request_tracking(self._live())

    def _requests(self) -> list[Request]:
        count = ctypes.c_size_t()
        found = self._library.rd_kafka_mock_get_requests(self._live(), ctypes.byref(count))
        try:
            return [
                Request(
                    self._library.rd_kafka_mock_request_id(each),
                    self._library.rd_kafka_mock_request_api_key(each),
                )
                for each in found[: count.value]
            ]
        finally:
            self._library.rd_kafka_mock_request_destroy_array(found, count)

    def set_rtt(self, milliseconds: int, broker: int = ALL_BROKERS) -> None:
        """Delay every response of the broker."""
        self._check(self._library.rd_kafka_mock_broker_set_rtt(self._live(), broker, milliseconds), "set a round trip")

    def push_errors(self, api: Api, codes: Sequence[int]) -> None:
        """Answer the next ``len(codes)`` requests of this type with these error codes (``KafkaError`` constants)."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._live(), api, len(codes), array)

    def clear_errors(self, api: Api) -> None:
        """Forget the pushed errors that no request has met yet."""
        self._library.rd_kafka_mock_clear_request_errors(self._live(), api)

    def close(self) -> None:
        """Stop the brokers; safe to call twice."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._cluster = None
        if self._handle:
            self._library.rd_kafka_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _live(self) -> int:
        if not self._cluster:
            raise MockClusterError("the mock cluster is closed")
        return self._cluster

    @staticmethod
    def _check(code: int, action: str) -> None:
        time.sleep(_BREATH_S)
        if code:
            raise MockClusterError(f"cannot {action}: {KafkaError(code).str()}")
