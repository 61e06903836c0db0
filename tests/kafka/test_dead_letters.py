"""``recallstream dead-letters`` on a real broker: records, headers, retention and a topic that refuses."""

import re

import pytest
from confluent_kafka import TopicPartition

from consumer.cli.main import main
from tests.consumer.waiting import eventually
from tests.kafka.real_harness import RealHarness

pytestmark = pytest.mark.kafka

Say = pytest.CaptureFixture[str]


def run(made: RealHarness, *arguments: str) -> int:
    sub, *rest = arguments
    topics = [f"--kafka.request-topic={made.requests}", f"--kafka.dead-letter-topic={made.dead_letter_topic}"]
    return main(["dead-letters", *topics, sub, "--bootstrap", made.bootstrap_servers, *rest])


def fill(made: RealHarness, count: int) -> None:
    member = made.member()
    for number in range(count):
        made.send(value=b"\xc1%d" % number, key=b"\x00k", headers={"correlation-id": b"\xff%d" % number})
    made.flush()
    made.dead_letters.wait(count)
    eventually(lambda: made.committed() == count)
    assert member.stop() == 0


def test_letters_are_listed_and_go_back_as_they_were(made: RealHarness, capsys: Say) -> None:
    fill(made, 4)
    capsys.readouterr()
    assert run(made, "list", "--class", "bad_request") == 0
    assert "4 of 4 dead letters" in capsys.readouterr().out
    assert run(made, "replay", "--at", "0:1-2") == 0
    said = capsys.readouterr().out
    assert re.findall(r"^0:(\d) -> \S+\[0\] attempt 2$", said, re.MULTILINE) == ["1", "2"]
    assert "2 sent and confirmed" in said
    assert made.end_of(made.requests) == 6
    made.member()
    again = made.dead_letters.wait(6)[4:]
    assert [(letter.key, letter.value) for letter in again] == [(b"\x00k", b"\xc11"), (b"\x00k", b"\xc12")]
    assert [letter.headers["correlation-id"] for letter in again] == [b"\xff1", b"\xff2"]
    assert {letter.headers["dlq.attempt"] for letter in again} == {b"2"}


def test_letters_that_retention_took_are_not_waited_for(made: RealHarness, capsys: Say) -> None:
    fill(made, 5)
    for done in made.cluster.admin.delete_records([TopicPartition(made.dead_letter_topic, 0, 3)]).values():
        done.result(10)
    capsys.readouterr()
    assert run(made, "list") == 0
    assert "2 of 2 dead letters" in capsys.readouterr().out
    assert run(made, "show", "0:1") == 1
    assert run(made, "replay", "--at", "0:0-4") == 0
    assert "2 sent and confirmed" in capsys.readouterr().out
    for done in made.cluster.admin.delete_records([TopicPartition(made.dead_letter_topic, 0, 5)]).values():
        done.result(10)
    assert run(made, "list") == 0
    assert "has none" in capsys.readouterr().out


def test_no_group_is_left_behind(made: RealHarness) -> None:
    fill(made, 1)
    assert run(made, "list") == 0
    groups = made.cluster.admin.list_consumer_groups(request_timeout=10).result(10).valid
    assert not [group.group_id for group in groups if group.group_id.startswith("recallstream-reader")]
