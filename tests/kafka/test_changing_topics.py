"""Topics of requests that change under a running member: more partitions, deleted, made anew."""

import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its type hints re-export little

from tests.consumer.waiting import eventually
from tests.kafka.real_harness import RealHarness

pytestmark = [pytest.mark.kafka, pytest.mark.parametrize("protocol", ["classic", "consumer"])]

SOON_S = 30.0
"""Without the service's own interval the client looks for new partitions every five minutes."""


def test_partitions_that_are_added_are_read_soon_and_from_their_beginning(made: RealHarness, protocol: str) -> None:
    made.protocol = protocol
    member = made.member(kafka=made.kafka(offset_reset="earliest"))
    (done,) = made.cluster.admin.create_partitions([NewPartitions(made.requests, 3)]).values()
    done.result(10)
    eventually(lambda: len(made.cluster.admin.list_topics(made.requests).topics[made.requests].partitions) == 3)
    made.send("early", partition=2)
    made.flush()
    eventually(lambda: member.owned() == {0, 1, 2}, SOON_S)
    made.replies.wait(1, SOON_S)
    assert member.loop.failure is None


def test_a_topic_that_is_deleted_shows_and_is_read_again_once_it_is_made_anew(made: RealHarness, protocol: str) -> None:
    made.protocol = protocol
    member = made.member()
    for number in range(3):
        made.send(f"old-{number}")
    made.flush()
    made.replies.wait(3)
    made.cluster.admin.delete_topics([made.requests])[made.requests].result(10)
    eventually(lambda: member.snapshot().not_ready == (f"topic {made.requests} does not exist",), SOON_S)
    made.cluster.create_topics({made.requests: 1})
    eventually(lambda: member.snapshot().not_ready == (), SOON_S)
    made.send("new")
    made.flush()
    made.replies.wait(4, SOON_S)
    eventually(lambda: made.committed() == 1, SOON_S)
    assert member.loop.failure is None


def test_a_missing_reply_topic_shows_before_anything_is_asked(made: RealHarness, protocol: str) -> None:
    made.protocol = protocol
    member = made.member(kafka=made.kafka(reply_topic=f"{made.reply_topic}.absent"))
    eventually(lambda: member.snapshot().not_ready == (f"topic {made.reply_topic}.absent does not exist",), SOON_S)


def test_a_missing_request_topic_shows_and_is_read_once_it_is_there(made: RealHarness, protocol: str) -> None:
    made.protocol = protocol
    late = f"{made.requests}.late"
    member = made.member(kafka=made.kafka(request_topic=late), wait=False)
    eventually(lambda: f"topic {late} does not exist" in " ".join(member.snapshot().not_ready), SOON_S)
    made.cluster.create_topics({late: 1})
    made.send("first", topic=late)
    made.flush()
    made.replies.wait(1, SOON_S)
    eventually(lambda: member.snapshot().not_ready == (), SOON_S)
