"""What ``--help`` shows: short, in plain words, within the terminal."""

import pytest

from consumer.cli.commands import COMMANDS
from consumer.cli.help import metavar
from consumer.cli.main import main

PAGES = [
    *([name] for name in COMMANDS),
    *(["catalog", name] for name in ("build", "publish", "status", "activate", "rollback")),
    *(["dead-letters", name] for name in ("list", "show", "replay")),
    *(["bench", name] for name in ("offline", "online", "kernels")),
]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_help_is_short_and_plain(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(words, capsys)
    usage, description, *_ = text.split("\n\n")
    assert usage.startswith(f"usage: recallstream {' '.join(words)}")
    assert len(usage.splitlines()) <= 5
    assert not any(line.startswith(" ") for line in description.splitlines())
    assert max(map(len, text.splitlines())) <= 80
    for ugly in ("(default: None)", "(default: {})", "(default: ())", "default factory", "SecretStr", "[str", "Path "):
        assert ugly not in text


def test_usage_has_one_entry_for_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    usage = " ".join(shown(["serve"], capsys).split("\n\n")[0].split())
    assert usage == (
        "usage: recallstream serve [--config PATH] [--check | --no-check] [--gpus {all,N}] [--SECTION.FIELD VALUE ...]"
    )


def test_usage_names_what_is_required_and_the_sub_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert "recall --input PATH --output PATH --catalog PATH" in shown(["recall"], capsys)
    assert "COMMAND ...\n\n" in shown(["catalog"], capsys)


def test_options_are_listed_by_section_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(["serve"], capsys)
    sections = [line.split()[0] for line in text.splitlines() if line.endswith(" options:")]
    assert sections == [
        "kafka",
        "kafka.oauth",
        "batch",
        "load",
        "recall",
        "wire",
        "histories",
        "engine",
        "catalog",
        "http",
        "log",
        "tracing",
    ]
    assert "(default: recall.requests)" in " ".join(text.split())
    assert "--kafka.client-options NAME=VALUE" in text


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("str", "TEXT"),
        ("SecretStr", "TEXT"),
        ("{all,int}", "{all,N}"),
        ("tuple[str,...]", "TEXT,..."),
        ("list[{level,vocab}]", "{level,vocab},..."),
        ("dict[str,{str,int,float,bool}]", "NAME=VALUE"),
        ("dict[str,JSON]", "JSON"),
        ("tuple[tuple[int,...],...]", "JSON"),
    ],
)
def test_metavars_are_words(kind: str, word: str) -> None:
    assert metavar(kind) == word


def test_a_plain_command_takes_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELS", "not,numbers")
    monkeypatch.setenv("levels", "not,numbers")
    assert main(["estimate"]) == 2
