"""Plots of the committed results, as SVG in docs/plots: ``python -m benchmarks.plots``."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.plot_overload import overload_plots
from benchmarks.plot_replay import replay_plots
from benchmarks.results import RESULTS, Row, load
from benchmarks.summary import Best, Line, ablated, best_rates, lines

PLOTS = Path(__file__).parents[1] / "docs" / "plots"
_SERIES = {
    "engine": ("engine", "#1f6f8b"),
    "floor": ("floor, kernels alone", "#c9c9c9"),
    "chained": ("floor, chained", "#8d8d8d"),
    "flattened": ("flattened beams", "#d98e4a"),
}
_ATTENTION = (
    ("gluon_us", "ours, own tokens included", "#1f6f8b"),
    ("cudnn_us", "cuDNN, context only", "#8d8d8d"),
    ("flattened_us", "flattened beams", "#d98e4a"),
)
_FIGURE = ("precision", "beam", "score")
"""What lines of one figure share."""
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
        floored = [line for line in lines(rows) if line.floor is not None and "ms" in line.floor]
        for key, group in groupby(floored, key=lambda line: tuple(line.case[name] for name in _FIGURE)):
            precision, beam, score = key
            others = [value for value in (precision, score) if value not in ("bf16", "level")]
            name = "-".join([path.stem, f"beam{re.sub('[/ ]', '-', beam)}", *others])
            yield f"{name}.svg", _cases(list(group))
        if best := list(best_rates(floored)):
            yield f"{path.stem}-rates.svg", _rates(best)
        if without := list(ablated(rows)):
            yield f"{path.stem}-ablation.svg", _ablation(without)
    for path in sorted(results.glob("kernels*.json")):
        rows = [row for row in load(path)["rows"] if row["kernel"] == "decode attention" and "flattened_us" in row]
        if rows:
            yield f"{path.stem}-decode-attention.svg", _attention(rows)
    yield from overload_plots(results)
    yield from replay_plots(results)


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
    figure.suptitle(f"{case['model']}, {case['precision']}, beam {case['beam']}, {case['score']} scores")
    return figure


def _rates(best: Sequence[Best]) -> Figure:
    """Requests a second beside the floor's."""
    figure = Figure(figsize=(6.4, 0.42 * len(best) + 1.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(best))
    for offset, series, rates in (
        (-0.5, "engine", [each.engine_rate for each in best]),
        (0.5, "floor", [each.floor_rate for each in best]),
    ):
        label, color = _SERIES[series]
        axes.barh([place + offset * 0.38 for place in places], rates, 0.38, label=label, color=color)
    axes.set_yticks(places, [each.name for each in best])
    axes.invert_yaxis()
    axes.set_xlabel("requests/s, mean latency at most 100 ms")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _attention(rows: Sequence[Row]) -> Figure:
    """Microseconds of one layer, on a logarithmic scale."""
    figure = Figure(figsize=(6.4, 0.42 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, label, color) in enumerate(_ATTENTION):
        values = [row[name] for row in rows]
        axes.barh([x + (place - 1) * 0.27 for x in range(len(rows))], values, 0.27, label=label, color=color)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row["case"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("decode attention of one layer, microseconds")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
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
