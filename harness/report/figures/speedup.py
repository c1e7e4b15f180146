"""The speedups of one subject and filter size: a line for each layer, and a panel for each batch size."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from harness.report.figures import style
from harness.report.figures.style import DARK, FASTER, GREY, PALE, SLOWER, SMALL, TEXT, WIDTH
from harness.sweep.comparisons import each, layer_label, summarise

PANELS = 7  # batch sizes side by side; more of them go below
ROW, PANEL_HEAD, AXIS, BETWEEN, BELOW = 0.165, 0.4, 0.26, 0.12, 0.02  # inches
TICKS_PER_INCH = 3.5
NO_TIME, NO_RIVAL = "\u00d7", "\u25cb"


def speedup_figure(cases: pd.DataFrame, title: str, caption: str, ends: style.Range | None = None) -> Figure:
    """The bar chart of one subject's rows of `compare`, all of one filter size.

    A bar goes from 1 to the speedup on a logarithmic axis, and a thin line from the slowest to the fastest run.
    ends: of the axis, for figures that are to be compared; by default those that the cases need.
    """
    layers = style.layers_of(cases)
    batches = sorted(int(batch) for batch in cases.batch.unique())
    lines = [batches[at : at + PANELS] for at in range(0, len(batches), PANELS)]
    notes = [caption, _key(cases)]
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
            style.logarithmic(axes, "x", ends or axis_ends(cases), most=int(TICKS_PER_INCH * wide))
            _draw_panel(axes, cases[cases.batch == batch], layers, labelled=j == 0)
    return figure


def axis_ends(cases: pd.DataFrame) -> style.Range:
    """The ends of an axis for these rows of `compare`: of their speedups and of each run's."""
    runs = [*(cases.rival_us / cases.most_us), *(cases.rival_us / cases.least_us)]
    return style.ratio_range([*cases.speedup, *runs])


def _key(cases: pd.DataFrame) -> str:
    parts = ["HW-M-C: input size, filters, input channels", "thin: all runs", "dashed, and above: geometric mean",
             "logarithmic axis"]  # fmt: skip
    if (cases.speedup < 1).any():
        parts.append("pale: slower")
    if (cases.rival_us.notna() & cases.mean_us.isna()).any():
        parts.append(f"{NO_TIME}: did not run")
    if cases.rival_us.isna().any():
        parts.append(f"{NO_RIVAL}: nothing to compare with")
    return "; ".join(parts)


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
            mark = NO_RIVAL if case.rival_us != case.rival_us else NO_TIME
            axes.text(1, y, mark, size=SMALL, color=GREY, ha="center", va="center")
    # One collection instead of a patch for each bar keeps the files small.
    axes.add_collection(PolyCollection(bars, facecolors=colours, linewidths=0), autolim=False)
    axes.add_collection(LineCollection(runs, colors=DARK, linewidths=0.9, zorder=4), autolim=False)
    s = summarise(cases)
    if s.geometric == s.geometric:
        axes.axvline(s.geometric, color=DARK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=3)
    axes.axvline(1, color=DARK, linewidth=0.9, zorder=3)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_yticks(range(len(layers)), layers if labelled else [], size=SMALL)
    axes.tick_params(axis="y", length=0, pad=3)
    axes.tick_params(axis="x", labelsize=SMALL, length=2, pad=2)
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    mean = f"{s.geometric:.2f}x, " if s.geometric == s.geometric else ""
    head: dict[str, Any] = {"textcoords": "offset points", "xy": (0, 1), "xycoords": "axes fraction", "color": DARK}
    axes.annotate(f"batch {int(cases.batch.iloc[0])}", xytext=(0, 14), size=TEXT, weight="bold", **head)
    axes.annotate(f"{mean}{s.wins}/{s.of} won", xytext=(0, 4), size=SMALL, **head)
