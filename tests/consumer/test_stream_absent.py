"""Replies to places that do not exist ask the client once a second."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer.stream.absent import Absent
from consumer.stream.producer import ReplyProducer
from consumer.stream.settings import KafkaSettings


def test_what_is_absent_is_known_for_a_second_with_all_above_it() -> None:
    now = [0.0]
    absent: Absent[str] = Absent(lambda: now[0])
    absent.note("t", 4, "no such partition")
    assert [absent.failure("t", partition) for partition in (-1, 3)] == [None, None]
    assert [absent.failure("t", partition) for partition in (4, 9)] == ["no such partition"] * 2
    assert absent.failure("other", 4) is None
    now[0] = 1.0
    assert absent.failure("t", 4) is None


def test_no_more_topics_are_known_than_there_is_room_for() -> None:
    absent: Absent[str] = Absent(lambda: 0.0)
    for number in range(1_001):
        absent.note(f"t{number}", -1, "no such topic")
    assert absent.failure("t1000", 0) == "no such topic"
    assert absent.failure("t0", 0) is None


@pytest.mark.parametrize(
    ("code", "kind", "asked"),
    [
        (KafkaError._UNKNOWN_PARTITION, "partition_unknown", [7, -1]),
        (KafkaError._UNKNOWN_TOPIC, "topic_unknown", [7]),
        (KafkaError.MSG_SIZE_TOO_LARGE, "too_large", [7, 7, 8, -1]),
    ],
)
def test_the_client_is_asked_again_only_for_what_may_be_there(code: int, kind: str, asked: list[int]) -> None:
    class Client:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def produce(self, _topic: str, _value: bytes, _key: bytes, partition: int, *_: object) -> None:
            self.asked.append(partition)
            raise KafkaException(KafkaError(code))

        def poll(self, _timeout: float) -> None: ...

    producer: ReplyProducer[Any] = ReplyProducer(KafkaSettings(), lambda _: None)
    client = producer._producer = Client()  # type: ignore[assignment]
    for number, partition in enumerate((7, 7, 8, None)):
        producer.send(number, "t", b"key", b"value", [], partition)
    reports = producer.poll(0.0)
    assert [sent for sent, _ in reports.failed] == [0, 1, 2, 3]
    assert {failure.kind for _, failure in reports.failed} == {kind}
    assert client.asked == asked
