"""Several request topics in one process, each with defaults of its own."""

from collections.abc import Iterator

import pytest

from consumer.cli.main import main
from consumer.wire.settings import RecallDefaults
from tests.consumer.serving_harness import REQUESTS, Harness, TopicReader, harness
from tests.consumer.waiting import eventually

SEARCH, FOUND = "recall.search", "recall.search.replies"


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness(**{SEARCH: 2, FOUND: 1}) as each:
        yield each


def test_each_topic_is_served_by_its_defaults_and_committed(made: Harness) -> None:
    found = TopicReader(made.bootstrap_servers, FOUND, 1)
    own = {"top_k": 2, "width": 9, "reply_topic": FOUND}
    member = made.member(kafka=made.kafka(topics={SEARCH: own}), defaults=RecallDefaults(top_k=3, width=4))
    eventually(lambda: len(member.snapshot().partitions) == 3, 40)
    for number in range(3):
        made.send(f"plain-{number}")
        made.send(f"search-{number}", topic=SEARCH, partition=1)
    made.flush()
    plain = [received.reply for received in made.replies.wait(3)]
    search = [received.reply for received in found.wait(3)]
    assert {(reply.request_id or "")[:5] for reply in plain} == {"plain"}
    assert {(len(reply.items), reply.beam_widths[0]) for reply in plain} == {(3, 4)}
    assert {(reply.request_id or "")[:6] for reply in search} == {"search"}
    assert {(len(reply.items), reply.beam_widths[0]) for reply in search} == {(2, 9)}
    assert {received.headers["request-topic"] for received in found.records} == {SEARCH.encode()}
    eventually(lambda: made.committed() == 3)
    eventually(lambda: made.committed(1, SEARCH) == 3)
    found.close()


def test_a_dead_letter_goes_back_to_the_topic_that_it_came_from(
    made: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = made.kafka(topics={SEARCH: {"reply_topic": FOUND}})
    member = made.member(kafka=kafka)
    made.send(topic=SEARCH, partition=1, value=b"\xc1")
    made.flush()
    (letter,) = made.dead_letters.wait(1)
    assert letter.headers["dlq.original.topic"] == SEARCH.encode()
    assert member.stop() == 0
    monkeypatch.setenv("RECALLSTREAM_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    assert main(["dead-letters", "replay", "--at", "0"]) == 1
    assert f"{SEARCH} is no request topic" in capsys.readouterr().out
    monkeypatch.setenv("RECALLSTREAM_KAFKA__TOPICS", f'{{"{SEARCH}": {{"reply_topic": "{FOUND}"}}}}')
    assert main(["dead-letters", "replay", "--at", "0"]) == 0
    assert (made.end_of(SEARCH, 1), made.end_of(REQUESTS)) == (2, 0)
