"""``recallstream send``: the answer as a table and as JSON, failures as one line on standard error."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from consumer.cli.main import main
from consumer.stream.mock_cluster import CLIENT_SETTINGS, MockCluster
from consumer.wire.events import WireEvent
from consumer.wire.fields import WireRequest
from consumer.wire.reply import encode_error, encode_reply
from consumer.wire.request import decode, read_carefully
from consumer.wire.settings import WireLimits
from engine.request import RecallResult
from tests.consumer.echo_service import echo_service
from tests.consumer.waiting import eventually

seen: list[WireRequest] = []


told: list[WireEvent] = []


def answer(value: bytes, key: bytes | None) -> list[bytes]:
    record = read_carefully(value, key, WireLimits())
    if isinstance(record, WireEvent):
        told.append(record)
        return []
    wire = decode(value, key=key, limits=WireLimits())
    seen.append(wire)
    if wire.catalog is not None:
        return [encode_error(wire, "unknown_catalog", f"no version {wire.catalog}")]
    if wire.deadline_ms == 1:
        return [encode_error(wire, "expired", "too late")]
    result = RecallResult(
        items=["i-1", "i-2"],
        scores=np.array([-0.25, -1.5], np.float32),
        sids=np.array([[1, 2], [3, 4]], np.int32) if wire.return_sids else None,
        fields={name: [f"[b]{name} 1", f"{name} 2"] for name in wire.return_fields} or None,
        model="m1",
        catalog="c7",
        beam_widths=(4, 2),
        exhausted=True,
        unknown_items=3,
        context_tokens=12,
    )
    return [encode_reply(wire, result, queue_ms=1.0, total_ms=2.0, degraded=("width",))]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with (
        MockCluster({"recall.requests": 1, "recall.replies": 2}) as cluster,
        echo_service(cluster.bootstrap_servers, "recall.requests", answer),
    ):
        yield cluster.bootstrap_servers


def send(broker: str, *arguments: str) -> int:
    seen.clear()
    options = [f"--kafka.consumer-options={name}={value}" for name, value in CLIENT_SETTINGS.items()]
    return main(["send", "--bootstrap", broker, *options, *arguments])


def test_the_answer_is_a_table_with_catalog_notes_and_timings(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert send(broker, "--history", "1,2,3", "--top-k", "10", "--fields", "title,year", "--sids") == 0
    shown = capsys.readouterr().out
    for text in ("i-1", "-0.2500", "1 2", "[b]title 1", "year 2", "catalog c7", "model m1", "beams 4 2", "round trip"):
        assert text in shown
    for note in ("fewer live items than asked", "3 unknown items skipped", "degraded: width"):
        assert note in shown
    assert "history truncated" not in shown


def test_every_option_reaches_the_request(broker: str) -> None:
    options = (
        "--history 5,6 --user u1 --top-k 4 --widths 8,4 --margin 1.5 --min-width 2 --score legal --max-items-per-sid 1 "
        "--exclude 9,10 --exclude-history --any-tag a,b --all-tags c --no-tag d --template home --context hour=3 "
        "--context region=eu"
    )
    assert send(broker, *options.split()) == 0
    (wire,) = seen
    assert np.array_equal(wire.history, [5, 6])  # type: ignore[arg-type]  # int ids
    assert np.array_equal(wire.exclude, [9, 10])
    assert (wire.user_id, wire.top_k, wire.score, wire.max_items_per_sid) == ("u1", 4, "legal", 1)
    assert wire.beam is not None
    assert (wire.beam.widths, wire.beam.margin, wire.beam.min_width) == ((8, 4), 1.5, 2)
    assert wire.filter is not None
    assert (wire.filter.any, wire.filter.all, wire.filter.none) == (("a", "b"), ("c",), ("d",))
    assert (wire.template, wire.context, wire.exclude_history) == ("home", {"hour": 3, "region": "eu"}, True)


def test_history_may_be_empty_strings_or_tokens(broker: str) -> None:
    assert send(broker, "--history", "") == 0
    assert seen[0].history is not None
    assert len(seen[0].history) == 0
    assert send(broker, "--history", "a, b,3") == 0
    assert seen[0].history == ["a", "b", "3"]
    assert send(broker, "--tokens", "7,8") == 0
    assert np.array_equal(seen[0].tokens, [7, 8])  # type: ignore[arg-type]  # given


def test_json_prints_the_reply(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert send(broker, "--history", "1", "--json", "--sids") == 0
    reply = json.loads(capsys.readouterr().out)
    assert (reply["items"], reply["scores"], reply["sids"]) == (["i-1", "i-2"], [-0.25, -1.5], [[1, 2], [3, 4]])
    assert (reply["status"], reply["catalog"]) == ("ok", "c7")


def test_an_error_reply_is_one_line_and_exit_code_1(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert send(broker, "--history", "1", "--catalog", "v9") == 1
    shown = capsys.readouterr()
    assert shown.err == "recallstream send: error: unknown_catalog: no version v9\n"
    assert shown.out == ""


def test_with_json_an_error_reply_is_printed_too(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert send(broker, "--history", "1", "--catalog", "v9", "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"] == {"code": "unknown_catalog", "message": "no version v9"}


def test_a_request_that_cannot_be_written_is_one_line_and_exit_code_1(
    broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert send(broker, "--tokens", "x") == 1
    assert capsys.readouterr().err == "recallstream send: tokens: must be ints\n"
    assert send(broker, "--history", "1", "--user", "\udcff") == 1  # what a shell's byte 0xff becomes
    assert "can't encode character" in capsys.readouterr().err


def test_no_broker_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.stream.client_transport.CONNECT_S", 0.5)
    assert send("127.0.0.1:1", "--history", "1") == 1
    error = capsys.readouterr().err
    assert error.startswith("recallstream send: cannot reach Kafka at 127.0.0.1:1")
    assert error.count("\n") == 1


def test_bad_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert send("127.0.0.1:1", "--top-k", "many") == 2
    assert "top_k" in capsys.readouterr().err


def test_events_are_sent_without_a_reply_and_a_request_may_go_by_what_is_held(broker: str) -> None:
    told.clear()
    assert send(broker, "--user", "u9", "--event", "5,6") == 0
    assert send(broker, "--user", "u9", "--append", "7") == 0
    assert send(broker, "--user", "u9") == 0
    assert send(broker, "--user", "u9", "--forget") == 0
    assert send(broker, "--event", "5") != 0, "whose?"
    eventually(lambda: len(told) == 2)
    assert [(each.type, each.user_id, list(each.items)) for each in told] == [
        ("event", "u9", [5, 6]),
        ("forget", "u9", []),
    ]
