"""The embedded broker: records go through it, faults can be injected, a missing symbol is a clear error."""

import re
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition, libversion

from consumer.stream import mock_cluster
from consumer.stream.mock_cluster import CLIENT_SETTINGS, TRIED_WITH, Api, MockCluster, MockClusterError
from tests.consumer.serving_harness import SILENT, harness
from tests.consumer.waiting import eventually

LOCK = Path(__file__).parents[2] / "requirements.lock"


def test_a_record_goes_through_with_key_headers_and_partition() -> None:
    with MockCluster({"t": 2}) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("t", b"value", key=b"key", partition=1, headers=[("h", b"\xff")])
        assert producer.flush(10) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                **CLIENT_SETTINGS,
            }
        )
        consumer.subscribe(["t"])
        message = eventually(lambda: consumer.poll(0.2))
        consumer.close()
        assert (message.value(), message.key(), message.partition()) == (b"value", b"key", 1)
        assert message.headers() == [("h", b"\xff")]


def test_a_pushed_produce_error_reaches_the_delivery_report() -> None:
    with MockCluster({"t": 1}) as cluster:
        cluster.push_errors(Api.PRODUCE, [KafkaError.MSG_SIZE_TOO_LARGE])
        codes: list[int | None] = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})

        def delivered(error: KafkaError | None, _message: object) -> None:
            codes.append(error.code() if error else None)

        producer.produce("t", b"refused", on_delivery=delivered)
        assert producer.flush(10) == 0
        producer.produce("t", b"taken", on_delivery=delivered)
        assert producer.flush(10) == 0
        assert codes == [KafkaError.MSG_SIZE_TOO_LARGE, None]


def test_a_broker_that_is_down_serves_nothing_and_serves_again_when_up() -> None:
    with MockCluster({"t": 1}, brokers=2) as cluster:
        cluster.set_leader("t", 0, 2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "reconnect.backoff.max.ms": 100})
        producer.produce("t", b"first")
        assert producer.flush(10) == 0
        cluster.broker_down(2)
        producer.produce("t", b"second")
        assert producer.flush(0.3) == 1
        cluster.broker_up(2)
        assert producer.flush(10) == 0


def test_metadata_lists_the_topics_created_up_front() -> None:
    with MockCluster({"a": 3}, brokers=2) as cluster:
        assert len(cluster.bootstrap_servers.split(",")) == 2
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        assert len(producer.list_topics("a", timeout=10).topics["a"].partitions) == 3


def test_a_missing_symbol_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mock_cluster, "_SIGNATURES", {"rd_kafka_mock_no_such_call": (None, ())})
    with pytest.raises(MockClusterError, match="rd_kafka_mock_no_such_call"):
        MockCluster()


def test_a_closed_cluster_refuses_calls() -> None:
    cluster = MockCluster({"t": 1})
    cluster.close()
    cluster.close()
    with pytest.raises(MockClusterError, match="closed"):
        cluster.create_topic("u", 1)


def test_a_refused_call_names_what_was_asked() -> None:
    with MockCluster({"t": 1}) as cluster, pytest.raises(MockClusterError, match="create topic t"):
        cluster.create_topic("t", 1)


def test_errors_that_nobody_met_can_be_cleared() -> None:
    with MockCluster({"t": 1}) as cluster:
        cluster.push_errors(Api.PRODUCE, [KafkaError.MSG_SIZE_TOO_LARGE] * 50)
        cluster.clear_errors(Api.PRODUCE)
        errors: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error) if error else None)
        assert producer.flush(10) == 0
        assert errors == []


def test_the_client_is_the_one_that_these_calls_were_tried_with() -> None:
    """The calls are outside librdkafka's promises: a new client is taken after these tests were read again."""
    (locked,) = re.findall(r"^confluent-kafka==(\S+)", LOCK.read_text(), re.MULTILINE)
    assert locked.startswith(TRIED_WITH)
    installed, _ = libversion()
    assert installed.startswith(TRIED_WITH), "as the lock file has it"


def test_a_missing_symbol_skips_the_tests_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mock_cluster, "_SIGNATURES", {"rd_kafka_mock_no_such_call": (None, ())})
    with pytest.raises(pytest.skip.Exception, match="rd_kafka_mock_no_such_call"), harness():
        pass


def filled(cluster: MockCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(count):
        producer.produce("t", b"%d" % number, partition=0)
    assert producer.flush(10) == 0


def test_deleted_records_are_gone_from_the_beginning() -> None:
    with MockCluster({"t": 1}) as cluster:
        filled(cluster, 5)
        cluster.delete_records("t", 0, 3)
        asker = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
        assert asker.get_watermark_offsets(TopicPartition("t", 0), timeout=10) == (3, 5)
        asker.close()
        with pytest.raises(MockClusterError, match=r"delete records of absent\[0\]"):
            cluster.delete_records("absent", 0, 3)


def test_a_topic_with_an_error_says_so_until_it_is_well() -> None:
    with MockCluster({"t": 1}) as cluster:
        asker = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.set_topic_error("t", KafkaError.TOPIC_AUTHORIZATION_FAILED)
        error = asker.list_topics("t", timeout=10).topics["t"].error
        assert error is not None
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        cluster.set_topic_error("t", KafkaError.NO_ERROR)
        assert asker.list_topics("t", timeout=10).topics["t"].error is None


def test_requests_are_tracked_with_their_broker() -> None:
    with MockCluster({"t": 1}, brokers=2) as cluster:
        cluster.set_leader("t", 0, 2)
        with cluster.tracked() as requests:
            filled(cluster, 3)
            produced = [request for request in requests() if request.api == Api.PRODUCE]
        assert produced
        assert {request.broker for request in produced} == {2}


def test_a_round_trip_takes_as_long_as_it_is_told_to() -> None:
    with MockCluster({"t": 1}) as cluster:
        asker = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        asker.list_topics(timeout=10)
        cluster.set_rtt(300)
        begun = time.monotonic()
        asker.list_topics(timeout=10)
        assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize("coordinator", [1, 2])
def test_a_group_is_asked_for_at_the_broker_that_coordinates_it(coordinator: int) -> None:
    with MockCluster({"t": 1}, brokers=2) as cluster:
        cluster.set_group_coordinator("g", coordinator)
        asker = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}, logger=SILENT)
        with cluster.tracked() as requests:
            asker.committed([TopicPartition("t", 0)], timeout=20)
            asked = [each.broker for each in requests() if each.api == Api.OFFSET_FETCH]
        asker.close()
    assert asked == [coordinator]
