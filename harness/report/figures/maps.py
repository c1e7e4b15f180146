"""Maps of speedups as numbers: a line for each layer, a column for each batch size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.contenders import registry
from harness.report.figures import style
from harness.report.figures.style import DARK, PALE, SMALL, TEXT, WIDTH
from harness.sweep.comparisons import FILTER, each, grouped, layer_label, summarise

CELL_HEIGHT, PANEL_HEAD, LEGEND_LINE, LEGEND_COLUMNS = 0.165, 0.48, 0.2, 4  # inches, and a number of long labels
LEAST_CELL, MOST_CELL, LEAST_PANEL = 0.38, 1.1, 1.75  # inches wide; a panel is no narrower than its title
MARK = "*"
SUMMARY = ("geometric mean", "cases won")  # the lines below those of the layers
# The colours of speedups: the first below 0.5, the next from there to 1, and so on.
ENDS = (0.5, 1, 1.5, 2, 3, 5)
COLOURS = ("#4a7fb5", "#a9c6e2", "#fdeee6", "#f9d0bd", "#f0a48f", "#e0717a", "#b92d47")
Panel = tuple[str, list[str], pd.DataFrame]  # filter size, layers, cases


def rivals_figure(cases: pd.DataFrame, title: str, caption: str) -> Figure:
    """The map of one subject's rows of `compare`, with a panel for each filter size.

    The colour of a cell is the family of the fastest rival, its number the speedup over that rival.
    """
    families, labels = [], {}
    for case in each(cases):
        families.append("")
        if isinstance(case.rival_provider, str):
            provider = registry.PROVIDERS[case.rival_provider]
            families[-1] = registry.family(provider.name, case.rival_algorithm)
            several = len(set(provider.colours.values())) > 1
            labels[families[-1]] = registry.shown(provider.name, case.rival_algorithm) if several else provider.label
    found = [family for family in registry.COLOURS if family in labels]
    legend = [Patch(color=registry.COLOURS[name], label=f"{labels[name]} ({families.count(name)})") for name in found]
    coloured = cases.assign(mark="", colour=[registry.COLOURS.get(family, PALE) for family in families])
    note = "Colour: the fastest rival, with its number of cases; number: speedup over it, framed where below 1"
    return _map_figure(coloured, title, [caption, note], legend, framed=True)


def speedup_map(cases: pd.DataFrame, title: str, notes: Sequence[str], left_out: pd.Series, limit: str) -> Figure:
    """The map of one subject's rows of `compare`, with a panel for each filter size. Colours are ranges of the speedup.

    left_out: which rows have a mark, because their fastest rival needs more workspace than the limit.
    """
    if left_out.any():
        notes = [*notes, f"{MARK} a rival that needs over {limit} of workspace is left out, and would be the fastest"]
    coloured = cases.assign(
        mark=left_out.map({True: MARK, False: ""}),
        colour=[COLOURS[bisect_right(ENDS, s)] if s == s else PALE for s in cases.speedup],
    )
    labels = [f"below {ENDS[0]}", *(f"{low} to {high}" for low, high in pairwise(ENDS)), f"{ENDS[-1]} and more"]
    ranges = zip(COLOURS, labels, strict=True)
    legend = [Patch(color=colour, label=label) for colour, label in ranges if colour in set(coloured.colour)]
    return _map_figure(coloured, title, notes, legend)


def _map_figure(cases: pd.DataFrame, title: str, notes: Sequence[str], legend: list[Patch], framed: bool = False
                ) -> Figure:  # fmt: skip
    """The map of rows that have a colour; framed: whether a frame marks a speedup below 1."""
    batches = sorted(int(batch) for batch in cases.batch.unique())
    panels = [(f"{k}x{kw}", style.layers_of(part), part) for (k, kw), part in grouped(cases, FILTER)]
    labels = style.labels_width([*SUMMARY, *style.layers_of(cases)])
    columns = _stack(panels, int(WIDTH / (labels + max(LEAST_PANEL, LEAST_CELL * len(batches)))))
    notes = [*notes, "; ".join(style.key(cases))]
    across = LEGEND_COLUMNS if framed else max(len(legend), 1)
    head, below = style.head_height(notes), 0.15 + LEGEND_LINE * -(-len(legend) // across)
    height = head + max(map(_tall, columns)) + below
    figure = style.new_figure(height, title, notes)
    pitch = (WIDTH - 0.1) / len(columns)
    wide = min(pitch - labels, max(LEAST_PANEL, MOST_CELL * len(batches)))
    for i, column in enumerate(columns):
        for j, (size, layers, members) in enumerate(column):
            tall = _tall([(size, layers, members)]) - PANEL_HEAD
            bottom = height - head - _tall(column[: j + 1])
            axes = figure.add_axes(((i * pitch + labels) / WIDTH, bottom / height, wide / WIDTH, tall / height))
            _draw_panel(axes, f"{size} filters, batch size:", layers, batches, members, framed)
    figure.legend(handles=legend, loc="lower left", ncols=across, frameon=False, fontsize=TEXT,
                  handlelength=1.2, handleheight=1.0, bbox_to_anchor=(0.05 / WIDTH, 0))  # fmt: skip
    return figure


def _tall(column: list[Panel]) -> float:
    return sum(PANEL_HEAD + CELL_HEIGHT * (len(layers) + len(SUMMARY)) for _, layers, _ in column)


def _stack(panels: list[Panel], most: int) -> list[list[Panel]]:
    """The panels distributed over at most `most` columns, in order, so that the tallest is as short as possible."""
    limit = max(_tall([panel]) for panel in panels)
    while True:
        columns = [[panels[0]]]
        for panel in panels[1:]:
            if _tall([*columns[-1], panel]) <= limit:
                columns[-1].append(panel)
            else:
                columns.append([panel])
        if len(columns) <= max(most, 1):
            return columns
        limit += CELL_HEIGHT


def _draw_panel(axes: Axes, title: str, layers: list[str], batches: list[int], cases: pd.DataFrame, framed: bool
                ) -> None:  # fmt: skip
    cells, lost = [], []
    write: dict[str, Any] = {"size": SMALL, "ha": "center", "va": "center_baseline"}
    for case in each(cases):
        x, y = batches.index(case.batch), layers.index(layer_label(case))
        cells.append(_box(x, y, 0.5, 0.5))
        axes.text(
            x, y, style.shown_speedup(case) + case.mark, color="white" if _is_dark(case.colour) else DARK, **write
        )
        if framed and case.speedup < 1:
            lost.append(_box(x, y, 0.46, 0.4))
    axes.add_collection(PolyCollection(cells, facecolors=list(cases.colour), edgecolors="white", linewidths=0.8))
    axes.add_collection(PolyCollection(lost, facecolors="none", edgecolors=DARK, linewidths=1.2))
    for batch, members in grouped(cases, "batch"):
        s = summarise(members)
        for i, text in enumerate((f"{s.geometric:.2f}" if s.geometric == s.geometric else "", f"{s.wins}/{s.of}")):
            axes.text(batches.index(batch), len(layers) + i, text, color=DARK, weight="bold", **write)
    axes.set_xlim(-0.5, len(batches) - 0.5)
    axes.set_ylim(len(layers) + len(SUMMARY) - 0.5, -0.5)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches], size=TEXT)
    axes.tick_params(length=0, pad=2, top=False, labeltop=True, bottom=False, labelbottom=False)
    style.layer_axis(axes, [*layers, *SUMMARY])
    axes.set_title(title, size=TEXT, weight="bold", pad=4, color=DARK)
    axes.spines[:].set_visible(False)


def _box(x: float, y: float, wide: float, tall: float) -> list[tuple[float, float]]:
    """The corners of a box around a point that reaches so far to each side."""
    return [(x - wide, y - tall), (x + wide, y - tall), (x + wide, y + tall), (x - wide, y + tall)]


def _is_dark(colour: str) -> bool:
    """Whether white text reads better on a colour, by its luminance."""
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
