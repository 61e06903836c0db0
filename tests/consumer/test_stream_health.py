"""What is known to be wrong with brokers and topics, and which sign of life ends it."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence

import pytest
from confluent_kafka import KafkaError

from consumer.stream.consumer import RequestConsumer
from consumer.stream.health import ClientHealth
from consumer.stream.partition import Partition
from consumer.stream.settings import KafkaSettings
from tests.consumer.serving_harness import Harness, harness
from tests.consumer.waiting import eventually

DOWN = KafkaError._ALL_BROKERS_DOWN
UNREACHABLE = "no broker can be reached at kafka:9092"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> ClientHealth:
    settings = KafkaSettings(bootstrap_servers="kafka:9092", brokers_down_limit_s=60, authentication_limit_s=30)
    return ClientHealth(settings, clock)


def statistics(*states: str) -> str:
    brokers = {f"broker:{number}": {"state": state, "nodeid": number} for number, state in enumerate(states)}
    return json.dumps({"name": "rdkafka", "brokers": brokers, "topics": {}})


def test_an_outage_over_its_limit_is_told(health: ClientHealth, clock: Clock) -> None:
    assert not health.troubles
    health.error(DOWN)
    clock.now = 59.9
    assert health.troubles == (UNREACHABLE,)
    assert health.over_limit is None
    clock.now = 60.0
    assert health.over_limit == UNREACHABLE


def test_refused_credentials_have_a_limit_of_their_own(health: ClientHealth, clock: Clock) -> None:
    health.error(DOWN)
    health.error(KafkaError._AUTHENTICATION)
    clock.now = 30.0
    assert health.over_limit == "the brokers refuse our credentials"


@pytest.mark.parametrize("sign", ["record", "connection"])
def test_brokers_that_come_and_go_within_the_limit_never_exceed_it(
    health: ClientHealth, clock: Clock, sign: str
) -> None:
    for begin in range(0, 500, 50):
        clock.now = begin
        health.error(DOWN)
        clock.now = begin + 45
        assert health.over_limit is None
        if sign == "connection":
            health.statistics(statistics("DOWN", "UP"))
        else:
            health.alive()
        assert not health.troubles


@pytest.mark.parametrize(
    "states", [(), ("DOWN",), ("CONNECT", "TRY_CONNECT", "INIT"), ("AUTH_REQ", "APIVERSION_QUERY")]
)
def test_a_connection_that_is_not_made_is_no_sign_of_life(
    health: ClientHealth, clock: Clock, states: tuple[str, ...]
) -> None:
    health.error(DOWN)
    health.statistics(statistics(*states))
    clock.now = 60.0
    assert health.over_limit == UNREACHABLE


class Listener:
    """Hears how often the group assigned something."""

    assignments = 0

    def assigned(self, starts: Mapping[Partition, int | None]) -> None:
        self.assignments += 1

    def revoked(self, partitions: Sequence[Partition]) -> None: ...
    def lost(self, partitions: Sequence[Partition]) -> None: ...
    def committed(self, offsets: Mapping[Partition, int]) -> None: ...
    def commit_failed(self, code: str) -> None: ...
    def offset_reset(self, partition: Partition, skipped: int) -> None: ...
    def client_error(self, code: str) -> None: ...


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness(partitions=3) as each:
        yield each


def test_a_consumer_that_has_left_its_group_is_no_member(made: Harness) -> None:
    listener = Listener()
    consumer = RequestConsumer(made.kafka(), listener)
    try:
        eventually(lambda: consumer.poll(0.02, 1) == [] and listener.assignments)
        assert consumer.membership() is not None
    finally:
        assert consumer.close(10)
    assert consumer.membership() is None


def test_an_idle_consumer_learns_that_a_broker_is_back(made: Harness) -> None:
    listener = Listener()
    consumer = RequestConsumer(made.kafka(consumer_options={"statistics.interval.ms": 100}), listener)

    def troubles() -> tuple[str, ...]:
        assert consumer.poll(0.02, 1) == []
        return consumer.troubles

    try:
        eventually(lambda: troubles() == () and listener.assignments)
        assignments = listener.assignments
        made.cluster.broker_down()
        eventually(lambda: troubles() == (f"no broker can be reached at {made.bootstrap_servers}",))
        made.cluster.broker_up()
        eventually(lambda: troubles() == ())
        assert listener.assignments == assignments, "the connection was the sign"
    finally:
        consumer.close(5.0)


def test_a_member_that_cannot_join_says_why(made: Harness) -> None:
    unreachable = made.member(kafka=made.kafka(bootstrap_servers="127.0.0.1:1"), wait=False)
    homeless = made.member(kafka=made.kafka(request_topic="absent"), wait=False)
    begin = "not a member of the consumer group yet: "
    eventually(lambda: unreachable.snapshot().not_ready == (f"{begin}no broker can be reached at 127.0.0.1:1",))
    eventually(lambda: homeless.snapshot().not_ready == (f"{begin}topic absent does not exist",))


def test_the_first_start_of_a_group_is_one_quiet_line(made: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "consumer.stream")
    made.member()
    lines = [record for record in caplog.records if "committed offset" in record.message]
    assert [(line.levelname, line.message) for line in lines] == [
        (
            "INFO",
            "3 of 3 new partitions have no committed offset: they start at the earliest one, which skips 0 records",
        )
    ]
