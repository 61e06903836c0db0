"""Goodput, latency and what was given up, by load."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.results import load

_COLORS = {"poisson": "#1f6f8b", "bursts": "#d98e4a"}
_LINES = {False: "-", True: "--"}


def overload_plots(results: Path) -> Iterator[tuple[str, Figure]]:
    """Name of the file and figure, of every sweep."""
    for path in sorted(results.glob("overload*.json")):
        yield f"{path.stem}.svg", overload_figure(load(path))


def overload_figure(report: Mapping[str, Any]) -> Figure:
    """Three panels; a line for each pattern, dashed where the ladder is allowed."""
    rows = [row for row in report["rows"] if row["what"] == "load"]
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    panels = figure.subplots(1, 3)
    for pattern, ladder in dict.fromkeys((row["pattern"], bool(row["ladder"])) for row in rows):
        line = [row for row in rows if (row["pattern"], bool(row["ladder"])) == (pattern, ladder)]
        label = f"{pattern}, with less" if ladder else pattern
        values = (
            [row["goodput_per_s"] for row in line],
            [row["p99_ms"] for row in line],
            [100 * row["degraded"] for row in line],
        )
        for panel, points in zip(panels, values, strict=True):
            times = [row["times"] for row in line]
            panel.plot(times, points, _LINES[ladder], marker="o", markersize=3, color=_COLORS[pattern], label=label)
    panels[1].axhline(report["deadline_ms"], color="#444", linewidth=0.8)
    for panel, title in zip(panels, ("goodput, answers/s", "p99, ms", "answers with less, %"), strict=True):
        panel.set_title(title)
        panel.set_xlabel("load, of the capacity")
        panel.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure
