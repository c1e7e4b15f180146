"""The picture of whole networks: the speedup over the best of torch in FP32, by network and batch size."""

from __future__ import annotations

from pathlib import Path

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.experiments.networks.rows import NETWORKS
from harness.experiments.networks.table import FIGURE, compare_networks, networks_results
from harness.report.figures import style
from harness.report.figures.style import DARK, PALE, SMALL, TEXT, WIDTH
from harness.sweep.comparisons import each, geometric_mean
from harness.sweep.provenance import provenance

PANEL, BELOW, BETWEEN, LEGEND = 2.5, 0.52, 0.15, 0.32  # inches: bars of a line of networks, and around them
LEFT, RIGHT = 0.62, 0.1
NETWORKS_IN_LINE = 6
BAR, BETWEEN_BATCHES, BETWEEN_NETWORKS = 1.0, 0.5, 1.6  # bars wide
OVER_TORCH = "speedup_of_torch"  # torch with TF32 allowed, over torch in FP32
# The bars of a case: column, label, colour.
BARS = (
    ("speedup", "cuConv, FP32", style.FASTER),
    (OVER_TORCH, "torch, TF32 allowed", "#b4b4b4"),
    ("speedup_tf32", "cuConv, TF32", "#f0b9a0"),
)


def draw_networks(results_of_device: Path, out: Path) -> Path | None:
    """Draw the figure of results/DEVICE/networks into out/networks, and return the path of the file.

    There is nothing to draw without a networks.csv, and where no network has times of cuConv and of torch in FP32.
    """
    results = networks_results(results_of_device)
    if results is None:
        return None
    compared = compare_networks(results.frame)
    compared = compared[compared.speedup.notna()]
    if compared.empty:
        return None
    with matplotlib.style.context(["default", style.STYLE]):
        return style.save(networks_figure(compared, provenance(results)), out / NETWORKS.folder / FIGURE)


def networks_figure(compared: pd.DataFrame, caption: str) -> Figure:
    """The bar chart of rows of `compare_networks`, each with a speedup: six networks to a line."""
    compared = compared.assign(**{
        OVER_TORCH: compared.torch_us / compared.torch_tf32_us,
        "speedup_tf32": compared.torch_us / compared.cuconv_tf32_us,
    })  # fmt: skip
    bars = [bar for bar in BARS if compared[bar[0]].notna().any()]
    names = list(dict.fromkeys(compared.network))
    lines = [names[at : at + NETWORKS_IN_LINE] for at in range(0, len(names), NETWORKS_IN_LINE)]
    won = f"{int((compared.speedup > 1).sum())} of {len(compared)}"
    title = f"Whole networks: cuConv in FP32 is faster than torch in {won} cases, geometric mean "
    notes = ["Speedup over the fastest torch in FP32 (plain in either layout, compiled, or compiled and frozen), in "
             "CUDA graphs.", caption]  # fmt: skip
    height = style.head_height(notes) + LEGEND + len(lines) * (PANEL + BELOW) + (len(lines) - 1) * BETWEEN
    figure = style.new_figure(height, f"{title}{geometric_mean(compared.speedup):.2f}x", notes)
    top = float(np.nanmax(compared[[column for column, _, _ in bars]].to_numpy(float))) * 1.1
    for i, line in enumerate(lines):
        bottom = height - style.head_height(notes) - LEGEND - i * (PANEL + BELOW + BETWEEN) - PANEL
        box = (LEFT / WIDTH, bottom / height, 1 - (LEFT + RIGHT) / WIDTH, PANEL / height)
        _draw_line(figure.add_axes(box), compared, line, bars, max(top, 1.25))
    handles = [Patch(color=colour, label=text) for _, text, colour in bars]
    figure.legend(handles=handles, loc="upper left", ncols=len(bars), frameon=False, fontsize=TEXT + 0.5,
                  handlelength=1.2, handleheight=1.0,
                  bbox_to_anchor=((LEFT - 0.1) / WIDTH, 1 - (style.head_height(notes) - 0.02) / height))  # fmt: skip
    return figure


def _draw_line(axes: Axes, compared: pd.DataFrame, names: list[str], bars: list[tuple[str, str, str]], top: float
               ) -> None:  # fmt: skip
    """The bars of some networks, side by side: batch sizes in a network, and the kinds of bars in a batch size."""
    x, batch_ticks, centres = 0.0, {}, {}
    for name in names:
        start = x
        for case in each(compared[compared.network == name]):
            for j, (column, _, colour) in enumerate(bars):
                value = getattr(case, column)
                if value == value:
                    axes.bar(x + j * BAR, value, BAR, color=colour, linewidth=0, zorder=2)
            # Aligned at the right of its bar, so that it does not stand on the next bar.
            axes.text(x + 0.45 * BAR, case.speedup, f"{case.speedup:.1f}", size=SMALL, color=DARK, ha="right",
                      va="bottom", zorder=4)  # fmt: skip
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
    axes.set_ylabel("speedup over torch in FP32", size=TEXT, color=DARK)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
