"""Lines on the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from catalog_sync.layout import Pointer


def say(line: str) -> None:
    from rich.console import Console

    Console().print(visible(line), markup=False, highlight=False, soft_wrap=True)


def visible(text: str) -> str:
    """Without characters that a terminal would obey: names come from files and from Redis."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def say_current(model: str, pointer: "Pointer") -> None:
    say(f"version {pointer.version} is current for model {model} (generation {pointer.generation})")
