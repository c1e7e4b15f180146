"""Speedup and regret of auto by the size of the plane: a dot for each case, coloured by the size of its filter."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.figures import style
from harness.report.figures.style import DARK, PALE, TEXT, WIDTH
from harness.sweep.comparisons import geometric_mean, summarise

PANEL, LEFT, RIGHT, AXIS, GAP, LEGEND = 2.6, 0.6, 0.1, 0.5, 0.25, 0.25  # inches
# The longest side of a filter from which a colour is used: 1, 2 to 3, 4 to 7 and so on.
COLOURS = {1: "#7f7f7f", 2: "#0072b2", 4: "#009e73", 8: "#d55e00", 16: "#8e5ea2"}
PLANE = 1.15  # room at the ends of the axis of planes, as a ratio


def planes_figure(compared: pd.DataFrame, chosen: pd.DataFrame, subject: str, rivals: str, caption: str) -> Figure:
    """A panel for the speedups of one subject's rows of `compare`, and one for the regret of those of `choice`.

    A panel without values is left out; one of both must have values. The plane is the root of the input's pixels.
    """
    total = summarise(compared)
    title = f"{subject}: {total.geometric:.2f}x over {rivals}, faster on {total.wins} of {total.of} cases"
    panels = [(_placed(rows, column), label) for rows, column, label in (
        (compared, "speedup", f"speedup over {rivals}"), (chosen, "behind", "time over the fastest of its own"),
    )]  # fmt: skip
    panels = [(rows, label) for rows, label in panels if len(rows)]
    notes = ["A dot for each case in FP32; colour: the longest side of its filter; dashed: geometric mean.", caption]
    head = style.head_height(notes) + LEGEND
    height = head + len(panels) * (PANEL + GAP) + AXIS - GAP
    figure = style.new_figure(height, title, notes)
    every = pd.concat(rows for rows, _ in panels)
    ends = float(every.plane.min()) / PLANE, float(every.plane.max()) * PLANE
    for i, (rows, label) in enumerate(panels):
        bottom = height - head - (i + 1) * PANEL - i * GAP
        box = (LEFT / WIDTH, bottom / height, 1 - (LEFT + RIGHT) / WIDTH, PANEL / height)
        axes = figure.add_axes(box)
        _draw(axes, rows, label, ends, is_last=i == len(panels) - 1)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", ncols=len(labels), frameon=False, fontsize=TEXT, borderaxespad=0,
                  handletextpad=0.1, bbox_to_anchor=(LEFT / WIDTH, 1 - (head - LEGEND) / height))  # fmt: skip
    return figure


def _placed(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """The cases that have a value in a column: their plane, this value, and the key of COLOURS of their filter."""
    rows = rows[rows[column].notna()]
    longest = rows[["k", "kw"]].max(axis=1).to_numpy(int)
    starts = np.array(list(COLOURS))
    return pd.DataFrame({
        "plane": np.sqrt(rows.h.to_numpy(float) * rows.w.to_numpy(float)),
        "value": rows[column].to_numpy(float),
        "start": starts[np.searchsorted(starts, longest, side="right") - 1],
    })  # fmt: skip


def _draw(axes: Axes, rows: pd.DataFrame, label: str, ends: style.Range, is_last: bool) -> None:
    """Draw the dots of one panel, and lines at their geometric mean and at 1."""
    style.logarithmic(axes, "x", ends)
    style.logarithmic(axes, "y", style.ratio_range([*rows.value]))
    for start, colour in COLOURS.items():
        mine = rows[rows.start == start]
        axes.plot(mine.plane, mine.value, "o", color=colour, markersize=4, markeredgewidth=0, alpha=0.75,
                  label=_sides(start))  # fmt: skip
    axes.axhline(1, color=DARK, linewidth=1.2, zorder=1)
    axes.axhline(geometric_mean(rows.value), color=DARK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    axes.grid(color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylabel(label, size=TEXT, color=DARK)
    axes.tick_params(labelsize=TEXT, length=2, labelbottom=is_last)
    axes.set_xlabel("plane: root of the input's pixels" if is_last else "", size=TEXT, color=DARK)
    axes.spines[["top", "right"]].set_visible(False)


def _sides(start: int) -> str:
    """The legend of a colour: the longest sides of its filters, such as "4 to 7"."""
    if start == max(COLOURS):
        return f"{start} and more"
    return str(start) if start == 1 else f"{start} to {2 * start - 1}"
