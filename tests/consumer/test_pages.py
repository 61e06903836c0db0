"""What the pages name is there: commands and their flags, settings, other pages and their headings."""

import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from consumer.cli.commands import COMMANDS
from consumer.cli.main import main
from consumer.service.settings import ServiceSettings, settings_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page: page.read_text() for page in PAGES}
SETTINGS = {".".join(path) for path, _ in settings_of(ServiceSettings)}
SECTIONS = "|".join({name.partition(".")[0] for name in SETTINGS if "." in name})
COMMAND = re.compile(rf"(?:^|`)recallstream ({'|'.join(COMMANDS)})\b([^`\n]*)", re.MULTILINE)
OTHERS = re.compile(r"recall\.(requests|replies|dead-letters|items|search)\b|load\.step")
"""Topics, and what /status says."""


@cache
def help_of(*words: str) -> str:
    """Empty for words that are no command."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(StringIO()):
        return said.getvalue() if main([*words, "--help"]) == 0 else ""


def commands() -> Iterator[list[str]]:
    for text in TEXTS.values():
        for line in COMMAND.findall(text):
            yield shlex.split("".join(line).partition(" #")[0].rstrip("\\"))


def test_the_commands_on_the_pages_exist_and_take_the_flags_that_they_are_given() -> None:
    shown = list(commands())
    assert len(shown) > 40
    for name, *words in shown:
        plain = [word for word in words if not word.startswith("-")]
        text = help_of(name)
        if "COMMAND" in text or "} ..." in text:  # it has sub-commands
            assert not plain or help_of(name, plain[0]), (name, words)
            text += help_of(name, plain[0]) if plain else ""
        for flag in (word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")):
            assert re.search(rf"{re.escape(flag)}\b", text), (name, words, flag)


def test_the_settings_on_the_pages_exist() -> None:
    named = set[str]()
    for text in TEXTS.values():
        named |= set(re.findall(rf"`(?:--)?((?:{SECTIONS})(?:\.[a-z_-]+)+)", OTHERS.sub("", text)))
        named |= {name.lower().replace("__", ".") for name in re.findall(r"RECALLSTREAM_([A-Z_]+__[A-Z_]+)", text)}
    named = {name.replace("-", "_") for name in named} - {"section.field", "kafka.field"}
    assert len(named) > 80
    within = {name for name in named if any(f"{each}.".startswith(f"{name}.") for each in SETTINGS)}
    maps = {name for name in named if any(name.startswith(f"{each}.") for each in SETTINGS)}
    assert named - within - maps == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if link.startswith("http"):
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, link
