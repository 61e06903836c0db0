"""``recallstream dead-letters`` against a service that fails: what is shown, what is sent back, and what never is."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.cli.main import main
from consumer.stream.mock_cluster import Api
from consumer.wire.headers import Headers, header_size
from engine.errors import RequestError
from engine.request import RecallRequest
from tests.consumer.fake_engine import FakeEngine
from tests.consumer.serving_harness import DEAD_LETTERS, REQUESTS, Harness, harness
from tests.consumer.waiting import eventually

Say = pytest.CaptureFixture[str]


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(made: Harness, *arguments: str) -> int:
    flags = ["--kafka.consumer-options=fetch.wait.max.ms=5"]
    sub, *rest = arguments
    return main(["dead-letters", *flags, sub, "--bootstrap", made.cluster.bootstrap_servers, *rest])


def error_of(captured: Say) -> str:
    (line,) = [line for line in captured.readouterr().err.splitlines() if line.startswith("recallstream")]
    return line.removeprefix("recallstream dead-letters: ")


def fill(made: Harness, bad: int = 1, internal: int = 0) -> None:
    """So many undecodable records and requests that the engine fails on, all of them dead letters."""

    def reject(request: RecallRequest) -> RequestError | None:
        return RequestError("internal", "a bug") if request.top_k == 7 else None

    member = made.member(FakeEngine(reject=reject))
    for number in range(bad):
        made.send(value=b"\xc1bad", key=b"k", headers={"correlation-id": b"\x00\xff", "n": str(number).encode()})
    for number in range(internal):
        made.send(f"i{number}", top_k=7)
    made.flush()
    made.dead_letters.wait(bad + internal)
    eventually(lambda: made.committed() == bad + internal)
    assert member.stop() == 0


def test_list_shows_why_and_where_from(made: Harness, capsys: Say) -> None:
    fill(made, bad=1, internal=1)
    capsys.readouterr()
    assert run(made, "list") == 0
    shown = capsys.readouterr().out
    assert "2 of 2 dead letters" in shown
    for text in ("0:0", "bad_request", "decode", f"{REQUESTS}[0]@0", "internal", "recall", f"{REQUESTS}[0]@1"):
        assert text in shown


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--class", "internal"], 2),
        (["--stage", "decode"], 3),
        (["--topic", REQUESTS], 5),
        (["--topic", "another"], 0),
        (["--since", "1h"], 5),
        (["--until", "1h"], 0),
        (["--at", "0:1-2,4"], 3),
        (["--at", "0:0-1,0:4", "--class=bad_request"], 2),
        (["--at", "1:0"], 0),
    ],
)
def test_list_filters(made: Harness, capsys: Say, filters: list[str], found: int) -> None:
    fill(made, bad=3, internal=2)
    capsys.readouterr()
    assert run(made, "list", *filters) == 0
    shown = capsys.readouterr().out
    assert (f"{found} of {found} dead letters" in shown) if found else "none of this kind" in shown


def test_list_of_an_empty_topic_says_so_and_a_limit_keeps_the_newest(made: Harness, capsys: Say) -> None:
    assert run(made, "list") == 0
    assert capsys.readouterr().out == f"{DEAD_LETTERS} has none\n"
    fill(made, bad=3)
    capsys.readouterr()
    assert run(made, "list", "--limit=1") == 0
    shown = capsys.readouterr().out
    assert "1 of 3 dead letters" in shown
    assert f"{REQUESTS}[0]@2" in shown
    assert f"{REQUESTS}[0]@1" not in shown


def test_show_prints_headers_fields_and_bytes(made: Harness, capsys: Say) -> None:
    fill(made, bad=1, internal=1)
    capsys.readouterr()
    assert run(made, "show", "0:0") == 0
    shown = capsys.readouterr().out
    for text in ("dlq.error.class", "0x00ff", "fields: none can be read", "value: 4 bytes", "c1 62 61 64", ".bad"):
        assert text in shown
    assert run(made, "show", "1") == 0
    shown = capsys.readouterr().out
    assert re.search(r"history +\[1, 2, 3\]", shown)
    assert re.search(r"top_k +7", shown)
    assert run(made, "show", "0:99") == 1
    assert error_of(capsys) == f"{DEAD_LETTERS} has no record at 0:99"


def test_nothing_that_a_letter_holds_reaches_the_terminal_as_a_command(made: Harness, capsys: Say) -> None:
    nasty = "\x1b[31m"
    headers = {"dlq.error.class": nasty.encode(), "dlq.error.message": nasty.encode(), nasty: nasty.encode()}
    made.send(nasty, topic=DEAD_LETTERS, key=nasty.encode(), headers=headers, labels={nasty: nasty})
    origin = {f"dlq.original.{name}": b"0" for name in ("partition", "offset", "timestamp")}
    made.send(nasty, topic=DEAD_LETTERS, headers={**headers, **origin, "dlq.original.topic": REQUESTS.encode()})
    made.flush()
    assert run(made, "list") == 0
    assert run(made, "show", "0") == 0
    assert run(made, "replay", "--at", "0:1", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b[31m" in shown


def sent_back(made: Harness, capsys: Say, *filters: str) -> int:
    """How many the command says it sent."""
    capsys.readouterr()
    assert run(made, "replay", *filters) == 0
    (said,) = re.findall(r"^(\d+) sent and confirmed$", capsys.readouterr().out, re.MULTILINE)
    return int(said)


def test_a_replay_is_served_as_the_original_was(made: Harness, capsys: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer.cli.dead_letters._STOP_S", 0.0)  # all is confirmed before the end begins
    made.cluster.set_rtt(50)
    fill(made, internal=1, bad=1)
    assert sent_back(made, capsys, "--class", "internal") == 1
    made.member()  # the bug is gone
    (reply,) = [r for r in made.replies.wait(3) if r.reply.status == "ok"]
    assert (reply.key, reply.reply.request_id, list(reply.reply.items)[:1]) == (b"user", "i0", [4])
    eventually(lambda: made.committed() == 3)


def test_fifty_replays_do_not_grow_the_record(made: Harness, capsys: Say) -> None:
    """The same dead letter, sent back and failing again, over and over."""
    fill(made, bad=1)
    member = made.member()
    sizes: list[int] = []
    for number in range(50):
        assert sent_back(made, capsys, "--at", f"0:{number}") == 1
        letter = made.dead_letters.wait(number + 2)[-1]
        assert (letter.key, letter.value) == (b"k", b"\xc1bad")
        assert letter.headers["correlation-id"] == b"\x00\xff"
        assert letter.headers["dlq.attempt"] == str(number + 2).encode()
        fixed: Headers = [(name, content) for name, content in letter.headers.items() if name not in COUNTERS]
        sizes.append(sum(header_size(name, content) for name, content in fixed))
        assert len(letter.headers) == 11
    assert len(set(sizes)) == 1
    assert member.loop.failure is None


COUNTERS = ("dlq.attempt", "dlq.original.offset")
"""Their digits grow with what they count, by one byte in fifty."""


def test_a_dry_run_sends_nothing(made: Harness, capsys: Say) -> None:
    fill(made, bad=9)
    capsys.readouterr()
    assert run(made, "replay", "--all", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "9 would be sent" in shown
    assert re.search(rf"9 .*bad_request .*decode .*{re.escape(REQUESTS)}", shown)
    assert made.end_of(REQUESTS) == 9


def test_many_are_sent_only_after_a_yes(made: Harness, capsys: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(made, bad=6)
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(made, "replay", "--all") == 1
    assert error_of(capsys) == "6 would be sent: confirm with --yes"
    for answer, code in (("n\n", 1), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", terminal(answer))
        assert made.end_of(REQUESTS) == 6
        assert run(made, "replay", "--all") == code
    assert made.end_of(REQUESTS) == 12
    assert sent_back(made, capsys, "--all", "--yes") == 6
    assert sent_back(made, capsys, "--at", "0-4") == 5, "a few need no yes"


def terminal(answer: str) -> io.StringIO:
    stream = io.StringIO(answer)
    stream.isatty = lambda: True  # type: ignore[method-assign]  # a terminal that says this
    return stream


def test_a_replay_needs_a_selection(made: Harness, capsys: Say) -> None:
    assert run(made, "replay") == 2
    assert "say which" in error_of(capsys)


@pytest.mark.parametrize("flags", [["--at", "x"], ["--at", "0:1:2"], ["--since", "soon"]])
def test_a_selection_that_makes_no_sense_is_a_usage_error(flags: list[str], capsys: Say) -> None:
    assert main(["dead-letters", "list", *flags]) == 2
    assert f"{flags[1]!r} is no" in error_of(capsys)


def test_only_the_request_topic_is_written_to_unless_another_is_named(made: Harness, capsys: Say) -> None:
    """A forged dead letter must not turn the operator's rights into a hole."""
    made.cluster.create_topic("payments", 1)
    origin = {"dlq.original.topic": b"payments"}
    numbers = {f"dlq.original.{name}": b"0" for name in ("partition", "offset", "timestamp")}
    made.send(topic=DEAD_LETTERS, value=b"x", headers={**origin, **numbers})
    made.send(topic=DEAD_LETTERS, value=b"x", headers={"mine": b"1"})
    made.send(topic=DEAD_LETTERS, value=b"x", headers={**origin, **numbers, "dlq.truncated": b"true"})
    made.flush()
    assert run(made, "replay", "--all") == 1
    shown = capsys.readouterr()
    assert "2 cannot be sent: payments is no request topic" in shown.out
    assert "1 cannot be sent: it does not say where it came from" in shown.out
    assert "there is nothing to send" in shown.err
    assert made.end_of("payments") == 0
    assert sent_back(made, capsys, "--topic", "payments") == 1, "the cut one stays"
    assert made.end_of("payments") == 1


def test_what_the_broker_does_not_confirm_is_not_called_sent(made: Harness, capsys: Say) -> None:
    fill(made, bad=2)
    capsys.readouterr()
    made.cluster.push_errors(Api.PRODUCE, [MSG_SIZE_TOO_LARGE] * 4)
    assert run(made, "replay", "--all") == 1
    shown = capsys.readouterr()
    assert "0 sent and confirmed" in shown.out
    assert shown.out.count("FAILED") == 2
    assert "2 were not confirmed" in shown.err
    assert made.end_of(REQUESTS) == 2


MSG_SIZE_TOO_LARGE = 10


def test_no_broker_and_no_topic_are_one_line(made: Harness, capsys: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer.stream.topic_reader.CONNECT_S", 0.5)
    assert main(["dead-letters", "list", "--bootstrap", "127.0.0.1:1"]) == 1
    assert error_of(capsys).startswith("cannot reach Kafka at 127.0.0.1:1")
    monkeypatch.setenv("RECALLSTREAM_KAFKA__DEAD_LETTER_TOPIC", "absent")
    assert run(made, "list") == 1
    assert "topic absent: " in error_of(capsys)


def test_the_page_says_how() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    for sub in ("list", "show", "replay"):
        assert f"recallstream dead-letters {sub}" in page
