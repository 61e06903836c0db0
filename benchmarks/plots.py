"""Plots of the committed results, as SVG in docs/plots: ``python -m benchmarks.plots``."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.results import RESULTS, Row, load
from benchmarks.summary import Line, ablated, lines

PLOTS = Path(__file__).parents[1] / "docs" / "plots"
_SERIES = {
    "engine": ("engine", "#1f6f8b"),
    "floor": ("floor, kernels alone", "#c9c9c9"),
    "chained": ("floor, chained", "#8d8d8d"),
    "flattened": ("flattened beams", "#d98e4a"),
}
_BAR = 0.2
_STYLE: Any = {
    "svg.hashsalt": "recallstream",  # the same data give the same file
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plots(results: Path) -> Iterator[tuple[str, Figure]]:
    """Name of the file and figure, of every run that has something to show."""
    for path in sorted(results.glob("offline*.json")):
        rows = load(path)["rows"]
        for (beam, score), group in groupby(lines(rows), key=lambda line: (line.case["beam"], line.case["score"])):
            suffix = "" if score == "level" else f"-{score}"
            yield f"{path.stem}-beam{re.sub('[/ ]', '-', beam)}{suffix}.svg", _cases(list(group))
        if without := list(ablated(rows)):
            yield f"{path.stem}-ablation.svg", _ablation(without)


def _cases(found: Sequence[Line]) -> Figure:
    """One panel a context length: milliseconds by batch."""
    contexts = sorted({line.case["context"] for line in found})
    figure = Figure(figsize=(max(5.2, 3.4 * len(contexts) + 0.6), 3.2), layout="constrained")
    panels = figure.subplots(1, len(contexts), squeeze=False)[0]
    for panel, context in zip(panels, contexts, strict=True):
        here = [line for line in found if line.case["context"] == context]
        for place, (series, (label, color)) in enumerate(_SERIES.items()):
            bars = [(x, row["ms"]) for x, line in enumerate(here) if (row := getattr(line, series)) and "ms" in row]
            offset = (place - 1.5) * _BAR
            panel.bar([x + offset for x, _ in bars], [ms for _, ms in bars], _BAR, label=label, color=color)
        panel.set_xticks(range(len(here)), [str(line.case["batch"]) for line in here])
        panel.set_title(f"context {context}")
        panel.set_xlabel("batch")
    panels[0].set_ylabel("milliseconds")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_SERIES), frameon=False)
    case = found[0].case
    figure.suptitle(f"{case['model']}, beam {case['beam']}")
    return figure


def _ablation(without: Sequence[tuple[str, Row, Row]]) -> Figure:
    figure = Figure(figsize=(5.6, 0.45 * len(without) + 1.2), layout="constrained")
    axes = figure.subplots()
    names = [name for name, _, _ in without]
    ratios = [row["ms"] / whole["ms"] for _, row, whole in without]
    bars: Any = axes.barh(names, ratios, 0.6, color=_SERIES["engine"][1])
    axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3)
    axes.axvline(1.0, color="#444", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("time without it, over the whole engine's")
    axes.set_title(without[0][1]["of"])
    return figure


def write_plots(results: Path = RESULTS, folder: Path = PLOTS) -> list[str]:
    """Write all of them; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    with mpl.rc_context(_STYLE):
        for name, figure in plots(results):
            figure.savefig(folder / name, metadata={"Date": None, "Creator": None})
            names.append(name)
    return names


if __name__ == "__main__":
    write_plots()
