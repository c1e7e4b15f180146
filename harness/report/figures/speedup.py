"""The speedups of one subject and filter size: a line for each layer, and a panel for each batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from harness.report.figures import style
from harness.report.figures.style import DARK, FASTER, GREY, PALE, SLOWER, SMALL, TEXT, WIDTH
from harness.sweep.comparisons import each, layer_label, summarise

PANELS = 7  # batch sizes side by side; more of them go below
ROW, PANEL_HEAD, AXIS, BETWEEN, BELOW = 0.165, 0.4, 0.44, 0.14, 0.02  # inches


def speedup_figure(cases: pd.DataFrame, title: str, rivals: str, notes: Sequence[str] = ()) -> Figure:
    """The bar chart of one subject's rows of `compare`, all of one filter size.

    A bar goes from 1 to the speedup on a logarithmic axis, and a thin line from the slowest to the fastest run.
    rivals: what the speedup is over.
    """
    layers = style.layers_of(cases)
    batches = sorted(int(batch) for batch in cases.batch.unique())
    lines = [batches[at : at + PANELS] for at in range(0, len(batches), PANELS)]
    runs = [*(cases.rival_us / cases.most_us), *(cases.rival_us / cases.least_us)]
    ends = style.ratio_range([*cases.speedup, *runs])
    slower = ["pale: slower"] if (cases.speedup < 1).any() else []
    shown = [style.shown_speedup(case) for case in each(cases)]
    notes = [
        *notes,
        "; ".join([*style.key(cases, shown), "thin: all runs", "dashed, and above: geometric mean", *slower]),
    ]
    pitch = PANEL_HEAD + ROW * len(layers) + AXIS
    height = style.head_height(notes) + 0.03 + pitch * len(lines) + BELOW
    figure = style.new_figure(height, title, notes)
    left = style.labels_width(layers)
    wide = (WIDTH - left - 0.1) / len(lines[0])
    for i, line in enumerate(lines):
        bottom = height - style.head_height(notes) - 0.03 - pitch * i - PANEL_HEAD - ROW * len(layers)
        for j, batch in enumerate(line):
            box = ((left + j * wide) / WIDTH, bottom / height, (wide - BETWEEN) / WIDTH, ROW * len(layers) / height)
            axes = figure.add_axes(box)
            style.logarithmic(axes, "x", ends)
            _draw_panel(axes, cases[cases.batch == batch], layers, labelled=j == 0)
        middle, over = left + (len(line) * wide - BETWEEN) / 2, f"speedup over {rivals} (logarithmic axis)"
        figure.text(middle / WIDTH, (bottom - 0.22) / height, over, size=TEXT, color=DARK, ha="center", va="top")
    return figure


def _draw_panel(axes: Axes, cases: pd.DataFrame, layers: list[str], labelled: bool) -> None:
    """The bars of one batch size, from the first layer at the top to the last."""
    bars, colours, runs = [], [], []
    for case in each(cases):
        y = layers.index(layer_label(case))
        if case.speedup == case.speedup:
            bars.append([(1, y - 0.36), (1, y + 0.36), (case.speedup, y + 0.36), (case.speedup, y - 0.36)])
            colours.append(FASTER if case.speedup > 1 else SLOWER)
            runs.append([(case.rival_us / case.most_us, y), (case.rival_us / case.least_us, y)])
        else:
            axes.text(1, y, style.shown_speedup(case), size=SMALL, color=GREY, ha="center", va="center")
    # One collection instead of a patch for each bar keeps the files small.
    axes.add_collection(PolyCollection(bars, facecolors=colours, linewidths=0), autolim=False)
    axes.add_collection(LineCollection(runs, colors=DARK, linewidths=0.9, zorder=4), autolim=False)
    s = summarise(cases)
    if s.geometric == s.geometric:
        axes.axvline(s.geometric, color=DARK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=3)
    axes.axvline(1, color=DARK, linewidth=0.9, zorder=3)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    style.layer_axis(axes, layers if labelled else [])
    axes.tick_params(axis="x", labelsize=SMALL, length=2, pad=2)
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    mean = f"{s.geometric:.2f}x, " if s.geometric == s.geometric else ""
    head: dict[str, Any] = {"textcoords": "offset points", "xy": (0, 1), "xycoords": "axes fraction", "color": DARK}
    axes.annotate(f"batch {int(cases.batch.iloc[0])}", xytext=(0, 14), size=TEXT, weight="bold", **head)
    axes.annotate(f"{mean}{s.wins}/{s.of} won", xytext=(0, 4), size=SMALL, **head)
