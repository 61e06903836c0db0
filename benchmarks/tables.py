"""Rich tables of a run."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.table import Table

from benchmarks.results import Row
from benchmarks.summary import Line, ablated, best_rates, lines


def offline_tables(rows: Sequence[Row]) -> list[Table]:
    found = list(lines(rows))
    tables = list(_cases(found))
    if best := list(best_rates(found)):
        table = Table("case", "batch", "requests/s", "floor's batch", "floor's requests/s", "ratio", title="best batch")
        for each in best:
            numbers = (each.engine_batch, f"{each.engine_rate:.1f}", each.floor_batch, f"{each.floor_rate:.1f}")
            table.add_row(each.name, *map(str, numbers), f"{each.ratio:.3f}")
        tables.append(table)
    if without := list(ablated(rows)):
        table = Table("engine without", "case", "ms", "with it", "ratio", title="ablation")
        for name, row, whole in without:
            ratio = row["ms"] / whole["ms"]
            table.add_row(name, row["of"], number(row["ms"]), number(whole["ms"]), f"{ratio:.3f}")
        tables.append(table)
    return tables


def progress_line(row: Row) -> str:
    found = f"{row['ms']:.3f} ms" if "ms" in row else row.get("error", row.get("share", ""))
    return f"{row['case']}: {row['what']} {found}"


def online_tables(rows: Sequence[Row]) -> Iterator[Table]:
    for case in dict.fromkeys(row["case"] for row in rows):
        table = Table("", "requests/s", "p50 ms", "p99 ms", "of offline", title=case)
        for row in rows:
            if row["case"] == case:
                cells = (number(row.get("ms")), number(row.get("p99_ms")), share(row.get("of_offline")))
                table.add_row(row["what"], f"{row['requests_per_s']:.2f}", *cells)
        yield table


def number(value: float | None) -> str:
    """Milliseconds to what a repeated run would show again."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _cases(found: Sequence[Line]) -> Iterator[Table]:
    for title, group in groupby(found, key=group_name):
        columns = (
            "context",
            "batch",
            "engine",
            "floor",
            "over",
            "chained",
            "over",
            "over no constraint",
            "flattened",
            "transformers",
            "req/s",
        )
        table = Table(*columns, title=f"{title}, ms")
        for line in group:
            engine = line.engine
            others = (line.floor, line.chained, line.flattened, line.transformers)
            floor, chained, flattened, transformers = map(milliseconds, others)
            table.add_row(
                str(engine["context"]), str(engine["batch"]), number(engine["ms"]), floor, share(line.over_floor),
                chained, share(line.over_chained), share(line.over_free), flattened, transformers,
                f"{engine['requests_per_s']:.1f}",
            )  # fmt: skip
        yield table


def group_name(line: Line) -> str:
    case = line.case
    return f"{case['model']}, {case['precision']}, beam {case['beam']}, {case['score']} scores"


def milliseconds(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return number(row["ms"]) if "ms" in row else str(row["error"])


def share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"
