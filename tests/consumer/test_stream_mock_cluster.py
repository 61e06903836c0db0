"""The embedded broker: records go through it, faults can be injected, a missing symbol is a clear error."""

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from consumer.stream import mock_cluster
from consumer.stream.mock_cluster import CLIENT_SETTINGS, Api, MockCluster, MockClusterError
from tests.consumer.waiting import eventually


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
