"""The section of ``recallstream bench kernels`` on the page of measured results."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.markdown import plain, table, where
from kernels.attention.splits import PROMPTS

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


def prompt_splits_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    """Prefill attention of a few new tokens by how the context is split."""
    checked, timed = ([row for row in report["rows"] if row["what"] == what] for what in ("checked", "timed"))
    yield "## A few new tokens on a long context\n"
    yield f"{where(report)}. Prefill attention of one layer, µs, by how the context is split: into parts of so many"
    yield "pages as long as a request gets no more than so many tiles for a key head, or not at all. Joining included;"
    yield f"the engine takes {PROMPTS.pages} pages, {PROMPTS.tiles} tiles for requests of at most {PROMPTS.wide} rows"
    yield "(a token and a query head of a key head), and splits no others. The library's attention has contiguous"
    yield "contexts and sees all of them; *read* is keys and values once, at the rate of a large copy.\n"
    rules = list(dict.fromkeys(rule for row in timed for rule in row["us"]))
    yield from table(
        ("context", "new tokens", "batch", *rules, "cuDNN", "FlashAttention", "read"),
        [
            (row["context"], row["new_tokens"], row["batch"], *(plain(row["us"].get(rule)) for rule in rules),
             *(plain(row.get(name)) for name in ("cudnn_us", "flash_us", "read_us")))
            for row in timed
        ],
    )  # fmt: skip
    if checked:
        most = max(row["error"] for row in checked)
        yield f"{len(checked)} batches of other lengths were off from float64 by at most {most:.2g}, and each of their"
        yield "requests was bit for bit what it is alone.\n"
