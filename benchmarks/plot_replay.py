"""A replayed day over time: how many are answered, and how much of their contexts was there already."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.replay_users import BIN_S
from benchmarks.results import load

_COLORS = {"sessions": "#1f6f8b", "no sessions": "#8d8d8d"}


def replay_plots(results: Path) -> Iterator[tuple[str, Figure]]:
    """Name of the file and figure, of every replay."""
    for path in sorted(results.glob("replay*.json")):
        yield f"{path.stem}.svg", replay_figure(load(path))


def replay_figure(report: Mapping[str, Any]) -> Figure:
    """The runs that go as fast as they can, and the one with a restart, dashed."""
    figure = Figure(figsize=(8.2, 3.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for row in report["rows"]:
        if row["what"] == "in time":
            continue
        label = row["arm"] if "restart_at" not in row else f"{row['arm']}, a restart"
        style: dict[str, Any] = {"color": _COLORS[row["arm"]], "linestyle": "--" if "restart_at" in row else "-"}
        bins = row["series"][:-1] or row["series"]  # the last one is cut short
        ends = [BIN_S * (number + 1) for number in range(len(bins))]
        panels[0].plot(ends, [answers / BIN_S for answers, _, _ in bins], label=label, **style)
        panels[1].plot(ends, [100 * reused / max(1, context) for _, context, reused in bins], **style)
    for panel, title in zip(panels, ("answers/s", "context tokens reused, %"), strict=True):
        panel.set_title(title)
        panel.set_xlabel("seconds")
        panel.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure
