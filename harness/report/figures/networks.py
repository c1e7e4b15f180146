"""The picture of whole networks: each way to run them over torch, by network and batch size."""

from __future__ import annotations

from pathlib import Path

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from harness.experiments.networks.rows import CUCONV, NETWORKS, TORCH_CONTENDERS
from harness.experiments.networks.table import (
    CONVERTED,
    CONVERTED_HALF,
    DEFAULT,
    FIGURE,
    HALF,
    TORCH,
    Entry,
    beside,
    paper_results,
)
from harness.precision import TF32
from harness.report.figures import style
from harness.report.figures.style import DARK, PALE, SMALL, TEXT, WIDTH
from harness.sweep.comparisons import each, geometric_mean
from harness.sweep.provenance import provenance

PANEL, BELOW, BETWEEN, LEGEND = 2.5, 0.52, 0.15, 0.54  # inches: bars of a line of networks, and around them
LEFT, RIGHT = 0.62, 0.1
NETWORKS_IN_LINE = 6
BAR, BETWEEN_BATCHES, BETWEEN_NETWORKS = 1.0, 0.4, 1.2  # bars wide
NUMBER = SMALL - 0.5  # points: above a bar, so that numbers side by side stay apart
HALO = withStroke(linewidth=1.0, foreground="white")  # where a number crosses a line
# What bars are compared with, the first that was measured, and a note on it.
BASELINES = {
    "torch's default": (DEFAULT, " (convolutions in TF32, NCHW)"),
    "torch in FP32": (TORCH, ", its fastest way"),
}
# The bars of a case: column, label, colour, and the contenders of which the fastest counts.
OURS = "cuconv_fp32"
BARS = (
    (OURS, "cuConv, FP32", style.FASTER, CONVERTED),
    ("cuconv_tf32", "cuConv, TF32", "#f0b9a0", Entry((CUCONV,), TF32)),
    ("cuconv_fp16", "cuConv, FP16", "#8c3b1a", CONVERTED_HALF),
    ("torch_fp32", "fastest of torch, FP32", "#d0d0d0", TORCH),
    ("torch_tf32", "fastest of torch, TF32", "#a8a8a8", Entry(TORCH_CONTENDERS, TF32)),
    ("torch_fp16", "fastest of torch, FP16", "#6f6f6f", HALF),
)


def draw_networks(results_of_device: Path, out: Path) -> Path | None:
    """Draw the figure of results/DEVICE/networks into out/networks, and return the path of the file.

    There is nothing to draw without a networks.csv, and where no network has times of cuConv in FP32 and of a baseline.
    """
    results = paper_results(results_of_device)
    if results is None:
        return None
    for baseline, (entry, _) in BASELINES.items():
        compared = speedups(results.frame, entry)
        if len(compared):
            with matplotlib.style.context(["default", style.STYLE]):
                figure = networks_figure(compared, provenance(results), baseline)
                return style.save(figure, out / NETWORKS.folder / FIGURE)
    return None


def speedups(frame: pd.DataFrame, baseline: Entry) -> pd.DataFrame:
    """A row for each network and batch with a time of a baseline and of cuConv in FP32, in order of their names.

    Columns: network, batch, and the speedup over the baseline of each of BARS, NaN where it was not measured.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    for column, _, _, entry in BARS:
        for case in beside(frame, baseline, entry):
            found.setdefault((case.network, case.batch), {})[column] = case.speedup
    rows = [{"network": network, "batch": batch, **found[network, batch]} for network, batch in sorted(found)]
    columns = ["network", "batch", *(column for column, *_ in BARS)]
    return pd.DataFrame(rows, columns=columns).dropna(subset=OURS)


def networks_figure(compared: pd.DataFrame, caption: str, baseline: str) -> Figure:
    """The bar chart of rows of `speedups` over one of BASELINES: six networks to a line."""
    bars = [bar for bar in BARS if compared[bar[0]].notna().any()]
    names = list(dict.fromkeys(compared.network))
    lines = [names[at : at + NETWORKS_IN_LINE] for at in range(0, len(names), NETWORKS_IN_LINE)]
    ours = compared[OURS]
    title = (
        f"Whole networks: cuConv in FP32 is {geometric_mean(ours):.2f}x as fast as {baseline}, and faster on "
        f"{int((ours > 1).sum())} of {len(ours)}"
    )
    notes = [f"Speedup over {baseline}{BASELINES[baseline][1]}, in CUDA graphs. The fastest of torch may be "
             "compiled or frozen.", caption]  # fmt: skip
    height = style.head_height(notes) + LEGEND + len(lines) * (PANEL + BELOW) + (len(lines) - 1) * BETWEEN
    figure = style.new_figure(height, title, notes)
    top = float(np.nanmax(compared[[column for column, *_ in bars]].to_numpy(float))) * 1.15
    for i, line in enumerate(lines):
        bottom = height - style.head_height(notes) - LEGEND - i * (PANEL + BELOW + BETWEEN) - PANEL
        box = (LEFT / WIDTH, bottom / height, 1 - (LEFT + RIGHT) / WIDTH, PANEL / height)
        _draw_line(figure.add_axes(box), compared, line, bars, max(top, 1.5))
    legend_top = style.head_height(notes) - 0.02
    for whose in ("cuconv", "torch"):
        handles = [Patch(color=colour, label=text) for column, text, colour, _ in bars if column.startswith(whose)]
        figure.legend(handles=handles, loc="upper left", ncols=len(handles), frameon=False, fontsize=TEXT + 0.5,
                      handlelength=1.2, handleheight=1.0,
                      bbox_to_anchor=((LEFT - 0.1) / WIDTH, 1 - legend_top / height))  # fmt: skip
        legend_top += LEGEND / 2
    return figure


def _draw_line(axes: Axes, compared: pd.DataFrame, names: list[str], bars: list[tuple[str, str, str, Entry]],
               top: float) -> None:  # fmt: skip
    """The bars of some networks, side by side: batch sizes in a network, and the kinds of bars in a batch size."""
    x, batch_ticks, centres = 0.0, {}, {}
    for name in names:
        start = x
        for case in each(compared[compared.network == name]):
            for j, (column, _, colour, _) in enumerate(bars):
                value = getattr(case, column)
                if value == value:
                    axes.bar(x + j * BAR, value, BAR, color=colour, linewidth=0, zorder=2)
                    axes.text(x + j * BAR, value + 0.02 * top, f"{value:.1f}", size=NUMBER, color=DARK, ha="center",
                              va="bottom", rotation="vertical", zorder=4, path_effects=[HALO])  # fmt: skip
            batch_ticks[x + (len(bars) - 1) * BAR / 2] = str(case.batch)
            x += len(bars) * BAR + BETWEEN_BATCHES
        centres[name] = (start + x - BETWEEN_BATCHES - BAR) / 2
        x += BETWEEN_NETWORKS
    axes.set_xlim(-1.5 * BAR, max(x - BETWEEN_NETWORKS - BETWEEN_BATCHES, 12.0))
    axes.set_ylim(0, top)
    axes.axhline(1, color=DARK, linewidth=1.0, zorder=3)
    axes.set_xticks(list(batch_ticks), list(batch_ticks.values()), size=SMALL, color=DARK)
    axes.tick_params(axis="x", length=0, pad=2)
    axes.tick_params(axis="y", labelsize=TEXT, length=2)
    axes.annotate("batch", xy=(0, 0), xycoords="axes fraction", xytext=(-13, -3), textcoords="offset points",
                  size=SMALL, color=style.GREY, ha="right", va="top")  # fmt: skip
    for name, centre in centres.items():
        axes.annotate(name, xy=(centre, 0), xycoords=axes.get_xaxis_transform(), xytext=(0, -17),
                      textcoords="offset points", size=TEXT + 0.5, color=DARK, ha="center", va="top")  # fmt: skip
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("speedup", size=TEXT, color=DARK)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
