"""Tables lose nothing, however wide the terminal is."""

import pytest

from consumer.cli.tables import print_table

ROWS = [
    {"version": "e4bd5a2ba9a16fe2", "label": "", "notes": "a long line of notes that has no room beside the others"},
    {"version": "881bd4990be4f9e4", "label": "", "notes": ""},
]


def test_in_a_pipe_each_row_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table("versions", ROWS)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if ROWS[0]["version"] in line]
    assert ROWS[0]["notes"] in line


def test_where_there_is_no_room_rows_become_paragraphs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table("versions", ROWS)
    out = capsys.readouterr().out
    assert all(len(line) <= 40 for line in out.splitlines())
    assert out.split() == ["versions", ROWS[0]["version"], "notes", *ROWS[0]["notes"].split(), ROWS[1]["version"]]


def test_a_column_without_any_value_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table("versions", ROWS)
    assert "label" not in capsys.readouterr().out
