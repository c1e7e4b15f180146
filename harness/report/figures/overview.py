"""A picture of a whole sweep: a dot for the speedup of each case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.figures import style
from harness.report.figures.style import DARK, DIGIT, PALE, SMALL, TEXT, WIDTH
from harness.sweep.comparisons import FILTER, geometric_mean, grouped, summarise

HEIGHT = 4.3  # inches
LEFT, RIGHT, BELOW, LEGEND = 0.5, 0.06, 0.5, 0.22  # inches around the axes; of the legend, a line
COLOURS = (  # one for each filter size
    "#0072b2", "#d55e00", "#009e73", "#8e5ea2", "#7f7f7f", "#b8860b", "#56b4e9", "#cc79a7", "#882255", "#999933",
    "#332288", "#44aa99", "#aa4466",
)  # fmt: skip
LABELS = 7  # filter sizes in a line of the legend
DOT, BETWEEN = 0.042, 0.02  # inches: of a dot, and between a strip of dots, its number and the next strip
LEAST_DOTS = 0.35  # part of its place that a strip of dots takes at least, where it has a number
GAP = 0.3  # between batch sizes, in places


def overview_figure(cases: pd.DataFrame, subject: str, rivals: str, caption: str, left_out: pd.Series, limit: str
                    ) -> Figure:  # fmt: skip
    """A dot for each of one subject's rows of `compare`, in a strip for each batch size and filter size.

    left_out: which rows are hollow dots, because their fastest rival needs more workspace than the limit.
    """
    total = summarise(cases)
    won, mean = f"{total.wins} of {total.of} cases", f"geometric mean {total.geometric:.2f}x"
    title = f"{subject}: faster than {rivals} on {won}, {mean}"
    notes = ["A dot for each case in FP32; bars and numbers are geometric means.", caption]
    ran = cases.assign(hollow=left_out)[cases.speedup.notna()]
    hollow = f"a rival that needs over {limit} of workspace was left out, and would probably be the fastest"
    lines = -(-len(ran.drop_duplicates(FILTER)) // LABELS) + int(ran.hollow.any())
    head = style.head_height(notes) + 0.1 + LEGEND * lines
    figure = style.new_figure(HEIGHT, title, notes)
    wide, tall = 1 - (LEFT + RIGHT) / WIDTH, (HEIGHT - BELOW - head) / HEIGHT
    axes = figure.add_axes((LEFT / WIDTH, BELOW / HEIGHT, wide, tall))
    style.logarithmic(axes, "y", style.ratio_range([*ran.speedup]))
    _draw_strips(figure, axes, ran, hollow)
    axes.axhline(1, color=DARK, linewidth=1.2, zorder=3)
    axes.set_ylabel(f"speedup over {rivals} (logarithmic)", size=TEXT, color=DARK)
    return figure


def _draw_strips(figure: Figure, axes: Axes, ran: pd.DataFrame, hollow: str) -> None:
    """Every strip, the means below, the legend above, and lines between batch sizes."""
    filters, batches = [size for size, _ in grouped(ran, FILTER)], sorted(ran.batch.unique())
    colours = [COLOURS[j % len(COLOURS)] for j in range(len(filters))]
    pitch = len(filters) + GAP
    place = (WIDTH - LEFT - RIGHT) / (len(batches) * pitch)  # inches
    for (batch, *size), members in grouped(ran, ["batch", *FILTER]):
        j = filters.index(tuple(size))
        _draw_strip(axes, batches.index(batch) * pitch + j, members, colours[j], place)
    labels = [f"batch {batch}\nmean {geometric_mean(same.speedup):.2f}x" for batch, same in grouped(ran, "batch")]
    centres = [i * pitch + (len(filters) - 1) / 2 for i in range(len(batches))]
    axes.set_xticks(centres, labels, size=TEXT + 0.5, color=DARK, linespacing=1.5)
    start = -(1 + GAP) / 2
    axes.set_xlim(start, start + len(batches) * pitch)
    for i in range(1, len(batches)):
        axes.axvline(start + i * pitch, color=PALE, linewidth=0.8, zorder=1)
    dots: dict[str, Any] = {"marker": "o", "markersize": 5, "linestyle": "none"}
    shown = [Line2D([], [], color=colours[j], label=f"{k}x{kw} filters", **dots) for j, (k, kw) in enumerate(filters)]
    lines = [shown[at : at + LABELS] for at in range(0, len(shown), LABELS)][::-1]  # from the lowest
    if ran.hollow.any():
        lines.insert(0, [Line2D([], [], color=DARK, markerfacecolor="white", label=hollow, **dots)])
    above = axes.get_window_extent().height / figure.dpi
    for i, line in enumerate(lines):
        corner = (-0.01, 1 + (0.02 + i * LEGEND) / above)
        figure.legend(handles=line, loc="lower left", bbox_to_anchor=corner, bbox_transform=axes.transAxes,
                      ncols=len(line), frameon=False, fontsize=TEXT + 0.5, handletextpad=0.1, columnspacing=1.2,
                      borderaxespad=0)  # fmt: skip
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0, pad=5)
    axes.tick_params(axis="y", labelsize=TEXT, length=2)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_strip(axes: Axes, x: float, members: pd.DataFrame, colour: str, place: float) -> None:
    """The dots of one batch and filter size, side by side in the order of the cases, their mean and its number.

    The number stands at the right of the dots, with fewer decimals where the place has few inches, or not at all.
    """
    mean = geometric_mean(members.speedup)
    for text in (f"{mean:.2f}", f"{mean:.1f}", ""):
        dots = 1 - (DIGIT * max(len(text) - 0.5, 0) + 3 * BETWEEN) / place  # a point is half as wide as a digit
        if dots > LEAST_DOTS:
            break
    middle = x - 0.5 + BETWEEN / place + dots / 2
    across = (np.arange(len(members)) + 0.5) / len(members) - 0.5
    for hollow, cases in grouped(members.assign(x=middle + across * (dots - DOT / place)), "hollow"):
        look = {"markerfacecolor": "white", "markeredgewidth": 0.8} if hollow else {"markeredgewidth": 0}
        axes.plot(cases.x, cases.speedup, "o", color=colour, markersize=72 * DOT, alpha=0.75, zorder=2, **look)
    ends = [middle - dots / 2, middle + dots / 2]
    axes.plot(ends, [mean, mean], color="white", linewidth=3.0, solid_capstyle="butt", zorder=3)
    axes.plot(ends, [mean, mean], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=4)
    axes.text(ends[1] + BETWEEN / place, mean, text, size=SMALL, color=colour, va="center_baseline")
