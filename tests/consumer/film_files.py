"""Small data sets in the form of the MovieLens files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

GENRES = ("Comedy", "Drama", "War")


def write_film_files(
    directory: Path, films: int, histories: Mapping[str, Sequence[int]], *, newline: str = "\r\n"
) -> Path:
    """Write ``ml-1m.item`` and ``ml-1m.inter``; histories hold 1-based item ids, one event a second."""
    directory.mkdir(parents=True, exist_ok=True)
    items = ["item_id:token\tmovie_title:token\trelease_year:float\tgenre:token"]
    items += [f"{token(item)}\tFilm {item}\t{1950 + item % 50}\t{GENRES[item % 3]}" for item in range(1, films + 1)]
    events = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for user, history in histories.items():
        events += [f"{user}\t{token(item)}\t4\t{1000 + at}" for at, item in enumerate(history)]
    for name, lines in (("ml-1m.item", items), ("ml-1m.inter", events)):
        (directory / name).write_text(newline.join([*lines, ""]), newline="")
    return directory


def token(item: int) -> str:
    return f"Film {item} ({1950 + item % 50})"
