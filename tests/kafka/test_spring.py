"""A client of another make: Spring's ReplyingKafkaTemplate asks this service on a real broker."""

import json

import pytest

from consumer.wire.reply import decode_reply
from tests.consumer.waiting import eventually
from tests.kafka import spring_client
from tests.kafka.real_harness import REPLY_PARTITIONS, RealHarness

pytestmark = pytest.mark.kafka
COUNT = 20


@pytest.fixture(scope="session", autouse=True)
def _client() -> None:
    if reason := spring_client.missing():
        pytest.skip(reason)


def asked(number: int, **changes: object) -> str:
    return json.dumps({"request_id": f"r{number}", "history": [number], "top_k": 2, **changes})


def round_trip(made: RealHarness, partition: int | None, values: list[str]) -> list[spring_client.Matched]:
    return spring_client.round_trip(made.bootstrap_servers, made.requests, made.reply_topic, partition, values)


@pytest.mark.parametrize("partition", [None, 1], ids=["whole topic, UUID ids", "one partition, ids that are no text"])
def test_spring_gets_the_reply_of_each_of_its_requests(made: RealHarness, partition: int | None) -> None:
    made.member()
    matched = round_trip(made, partition, [asked(number) for number in range(COUNT)])
    for number, each in enumerate(matched):
        reply = decode_reply(each.value)
        assert (reply.status, reply.request_id) == ("ok", f"r{number}")
        assert list(reply.items) == [number + 1, number + 2]
    ids = {each.correlation_id for each in matched}
    assert len(ids) == len(matched) == COUNT
    sizes, partitions = {len(each) for each in ids}, {each.partition for each in matched}
    if partition is None:
        assert sizes == {16}
        assert partitions <= set(range(REPLY_PARTITIONS))
    else:
        assert sizes == {11}
        assert all(each.startswith(b"\x00\xff\xfe\x80\x00\n\r") for each in ids)
        assert partitions == {partition}
    eventually(lambda: made.committed() == COUNT)
    sent = {received.headers["kafka_correlationId"] for received in made.replies.wait(COUNT)}
    assert sent == ids


def test_spring_is_told_of_a_request_that_cannot_be_served(made: RealHarness) -> None:
    made.member()
    good, bad = round_trip(made, 0, [asked(1), asked(2, history="none")])
    assert decode_reply(good.value).status == "ok"
    refused = decode_reply(bad.value)
    assert refused.error is not None
    assert (refused.request_id, refused.error.code) == ("r2", "bad_request")
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"bad_request"
