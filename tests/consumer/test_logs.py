"""Logging set-up."""

import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest

from consumer.service.logs import configure_logging
from consumer.service.settings import LogSettings

log = logging.getLogger("recallstream.test")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_json_is_one_object_a_line_with_the_exception_inside(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format="json"))
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it failed for %s", "ünïcode")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == (
        "error",
        "recallstream.test",
        "it failed for ünïcode",
    )
    assert "ValueError: two\nlines" in entry["exception"]
    assert datetime.fromisoformat(entry["time"]).tzinfo is not None


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_message_is_one_line_whatever_a_request_says(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings.model_validate({"format": format}))
    log.warning("dead letter: %s", "a\n2026-01-01 ERROR forged\r\x1b[2J\u2028b: \u00fc")
    line, end = capsys.readouterr().err.split("\n")
    assert end == ""
    assert not {"\r", "\x1b"} & set(line)
    assert "\u00fc" in line


def test_less_severe_lines_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(level="warning"))
    log.info("quiet")
    log.warning("loud")
    written = capsys.readouterr().err
    assert "quiet" not in written
    assert "WARNING" in written


def test_a_second_set_up_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    configure_logging(LogSettings())
    log.info("once")
    assert capsys.readouterr().err.count("once") == 1
