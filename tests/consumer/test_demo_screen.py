import io
from pathlib import Path

import numpy as np
from rich.console import Console

from consumer.demo.checks import Check
from consumer.demo.movielens import load_movielens
from consumer.demo.screen import Screen
from consumer.demo.traffic import Answer
from consumer.wire.reply import RecallReply
from tests.consumer.film_files import write_film_files


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def test_the_summary_says_how_many_checks_failed() -> None:
    screen = console()
    Screen(screen).summary([Check("one", True, "fine"), Check("two", False, "3 of 4")], 12.0)
    assert "1 of 2 failed" in shown(screen)
    assert "everything held" not in shown(screen)
    assert "3 of 4" in shown(screen)


def test_samples_show_the_reply_s_titles_as_they_are_and_mark_the_next_film(tmp_path: Path) -> None:
    data = load_movielens(write_film_files(tmp_path, 9, {"a": [4, 1, 7, 2, 5]}))
    reply = RecallReply(
        v=1,
        status="ok",
        request_id="r",
        items=np.array([8, 5]),
        scores=np.zeros(2, np.float32),
        fields={"title": ["The [red] Film", "Film five"]},
    )
    screen = console()
    Screen(screen).samples([Answer(0, reply, None, 1.0)], data)
    text = shown(screen)
    assert "The [red] Film" in text
    assert "Film five  ✓" in text
    for item, is_shown in ((4, False), (1, True), (7, True), (2, True)):
        assert (f"Film {item} (" in text) is is_shown


def test_latency_counts_answers_only() -> None:
    screen = console()
    Screen(screen).latency([Answer(0, None, None, 10.0), Answer(0, None, "late", 9_000.0)], 2.0)
    assert "p99 10 ms" in shown(screen)
    assert "1 requests/s" in shown(screen)


def test_a_command_is_one_line_however_narrow_the_terminal() -> None:
    screen = console()
    command = "recallstream send " + "--history " + ",".join(map(str, range(100)))
    Screen(screen).command(command)
    assert shown(screen) == command + "\n"
