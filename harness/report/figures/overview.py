"""The picture of a whole sweep: the speedup of one subject on every case, by batch size and filter size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.figures import style
from harness.report.figures.style import DARK, GREY, PALE, SMALL, TEXT, WIDTH
from harness.sweep.comparisons import geometric_mean, grouped, summarise

HEIGHT = 4.3  # inches
LEFT, RIGHT, BELOW, LEGEND = 0.5, 0.1, 0.62, 0.34  # inches around the axes
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#8e5ea2", "#7f7f7f", "#b8860b")  # of filter sizes
STRIP = 0.8  # part of its place that a strip of dots takes
GAP = 0.6  # between batch sizes, in places


def overview_figure(cases: pd.DataFrame, subject: str, rivals: str, caption: str) -> Figure:
    """A dot for each of one subject's rows of `compare`, in a strip for each batch size and filter size."""
    total = summarise(cases)
    won = f"faster than {rivals} on {total.wins} of {total.of} cases"
    title = f"{subject}: {won}, geometric mean {total.geometric:.2f}x"
    notes = [f"Speedup in FP32: a dot for each case; bars and means are geometric means. {caption}"]
    figure = style.new_figure(HEIGHT, title, notes)
    tall = HEIGHT - BELOW - style.head_height(notes) - LEGEND
    axes = figure.add_axes((LEFT / WIDTH, BELOW / HEIGHT, 1 - (LEFT + RIGHT) / WIDTH, tall / HEIGHT))
    ran = cases[cases.speedup.notna()]
    style.logarithmic(axes, "y", style.ratio_range([*ran.speedup]), most=9)
    _draw_strips(axes, ran)
    axes.axhline(1, color=DARK, linewidth=1.2, zorder=3)
    axes.annotate(f"1: as fast as {rivals}", xy=(1, 1), xycoords=axes.get_yaxis_transform(), xytext=(-2, -3),
                  textcoords="offset points", size=SMALL, color=DARK, ha="right", va="top")  # fmt: skip
    axes.text(1, 1.015, "logarithmic axis", size=SMALL, color=GREY, transform=axes.transAxes, ha="right", va="bottom")
    return figure


def _draw_strips(axes: Axes, ran: pd.DataFrame) -> None:
    """Every strip, the means below, the legend above, and lines between batch sizes."""
    filters, batches = sorted(ran.k.unique()), sorted(ran.batch.unique())
    colours = [COLOURS[j % len(COLOURS)] for j in range(len(filters))]
    pitch = len(filters) + GAP
    for (batch, k), members in grouped(ran, ["batch", "k"]):
        j = filters.index(k)
        _draw_strip(axes, batches.index(batch) * pitch + j, members.speedup.to_numpy(float), colours[j])
    means = [geometric_mean(ran[ran.batch == batch].speedup) for batch in batches]
    labels = [f"batch {batch}\nmean {mean:.2f}x" for batch, mean in zip(batches, means, strict=True)]
    centres = [i * pitch + (len(filters) - 1) / 2 for i in range(len(batches))]
    axes.set_xticks(centres, labels, size=TEXT + 0.5, color=DARK, linespacing=1.5)
    start = -(1 + GAP) / 2
    axes.set_xlim(start, start + len(batches) * pitch)
    for i in range(1, len(batches)):
        axes.axvline(start + i * pitch, color=PALE, linewidth=0.8, zorder=1)
    dots: dict[str, Any] = {"marker": "o", "markersize": 5, "linestyle": "none"}
    handles = [Line2D([], [], color=colours[j], label=f"{k}x{k} filters", **dots) for j, k in enumerate(filters)]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 0.995), ncols=len(filters), frameon=False,
                fontsize=TEXT + 0.5, handletextpad=0.1, columnspacing=1.2)  # fmt: skip
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0, pad=5)
    axes.tick_params(axis="y", labelsize=TEXT, length=2)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_strip(axes: Axes, x: float, speedups: np.ndarray, colour: str) -> None:
    """The dots of one batch and filter size, spread from side to side in the order of the cases, and their mean."""
    offsets = style.spread(len(speedups), STRIP)
    axes.plot(x + offsets, speedups, "o", color=colour, markersize=3.0, alpha=0.75, markeredgewidth=0, zorder=2)
    mean = geometric_mean(speedups)
    axes.plot([x - 0.46, x + 0.46], [mean, mean], color="white", linewidth=3.0, solid_capstyle="butt", zorder=3)
    axes.plot([x - 0.46, x + 0.46], [mean, mean], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=4)
