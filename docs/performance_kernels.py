"""The section of ``recallstream bench kernels`` on the page of measured results."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.markdown import plain, table, where

PLOTS = Path(__file__).parent / "plots"


def kernels_section(stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield "## Kernels\n"
    yield f"{where(report)}. Microseconds unless said otherwise; every kernel is checked before it is timed.\n"
    rows = report["rows"]
    yield from table(
        ("checked", "case", "relative error"),
        [(row["kernel"].rpartition(".")[2], row["case"], plain(row["error"])) for row in rows if "error" in row],
    )
    for kernel in dict.fromkeys(row["kernel"] for row in rows if "error" not in row):
        here = [row for row in rows if row["kernel"] == kernel]
        columns = list(dict.fromkeys(key for row in here for key in row if key not in ("kernel", "case")))
        yield f"### {kernel}\n"
        yield from table(
            ("case", *(column.removesuffix("_us").replace("_", " ") for column in columns)),
            [(row["case"], *(plain(row.get(column)) for column in columns)) for row in here],
        )
    yield from (f"![{plot.stem}](plots/{plot.name})\n" for plot in sorted(PLOTS.glob(f"{stem}-*.svg")))
