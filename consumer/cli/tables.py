"""Tables for terminals of any width, and for pipes."""

import os
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 1000


def stdout() -> Console:
    """Of the terminal's width; in a pipe as wide as anything needs, unless COLUMNS says how wide."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPE_WIDTH)


def folded(table: Table) -> Table:
    """With cells that are folded where there is no room; rich would cut figures off."""
    for column in table.columns:
        column.overflow = "fold"
    return table


def print_table(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows of one set of columns, the first of which names them; nothing is ever cut off.

    Columns that are empty in all rows are left out. In a pipe each row is one line, for grep; on a terminal that is too
    narrow for the table each row becomes a paragraph.
    """
    console = stdout()
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text(row[name]) for name in columns))
    if Measurement.get(console, console.options.update(max_width=_PIPE_WIDTH), table).maximum <= console.width:
        console.print(table)
        return
    console.print(Text(title, style="italic"))
    for row in rows:
        console.print(Text(row[columns[0]], style="bold"))
        rest = [Text.assemble((name, "dim"), f" {row[name]}") for name in columns[1:] if row[name]]
        console.print(Padding(Text("  ").join(rest), (0, 0, 0, 4)))
