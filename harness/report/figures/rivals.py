"""The map of rivals: which algorithm of cuDNN is the fastest on each case, and the speedup over it."""

from __future__ import annotations

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
from harness.sweep.comparisons import each, grouped, layer_label

CELL_HEIGHT, PANEL_HEAD, LEGEND_LINE, LEGEND_COLUMNS = 0.165, 0.48, 0.2, 4  # inches, and a number
Panel = tuple[int, list[str], pd.DataFrame]  # filter size, layers, cases


def rivals_figure(cases: pd.DataFrame, title: str, caption: str) -> Figure:
    """One subject's rows of `compare`: a panel for each filter size, a line for each layer, a cell for each batch size.

    The colour of a cell is the family of the fastest rival, its number the speedup over that rival.
    """
    batches = sorted(int(batch) for batch in cases.batch.unique())
    columns = _stack([(k, style.layers_of(members), members) for k, members in grouped(cases, "k")])
    legend = _legend(cases)
    notes = [caption, "Colour: the fastest rival; number: speedup over it, framed where below 1. HW-M-C: input size, "
             "filters, input channels"]  # fmt: skip
    head, below = style.head_height(notes), 0.15 + LEGEND_LINE * -(-len(legend) // LEGEND_COLUMNS)
    height = head + max(map(_tall, columns)) + below
    figure = style.new_figure(height, title, notes)
    pitch = (WIDTH - 0.1) / len(columns)
    for i, column in enumerate(columns):
        labels = style.labels_width([layer for _, layers, _ in column for layer in layers])
        for j, (k, layers, members) in enumerate(column):
            bottom = height - head - _tall(column[: j + 1])
            box = (i * pitch + labels, bottom, pitch - labels, CELL_HEIGHT * len(layers))
            axes = figure.add_axes((box[0] / WIDTH, box[1] / height, box[2] / WIDTH, box[3] / height))
            _draw_panel(axes, f"{k}x{k} filters, batch size:", layers, batches, members)
    figure.legend(handles=legend, loc="lower left", ncols=LEGEND_COLUMNS, frameon=False, fontsize=TEXT,
                  handlelength=1.2, handleheight=1.0, bbox_to_anchor=(0.05 / WIDTH, 0))  # fmt: skip
    return figure


def _tall(column: list[Panel]) -> float:
    return sum(PANEL_HEAD + CELL_HEIGHT * len(layers) for _, layers, _ in column)


def _stack(panels: list[Panel]) -> list[list[Panel]]:
    """Panels in columns, side by side, and one below the other where the tallest leaves the room."""
    tallest = max(_tall([panel]) for panel in panels)
    columns = [[panels[0]]]
    for panel in panels[1:]:
        if _tall([*columns[-1], panel]) <= tallest:
            columns[-1].append(panel)
        else:
            columns.append([panel])
    return columns


def _family(case: Any) -> str | None:
    """The family of the fastest rival of a case; None where no rival ran."""
    provider, algorithm = case.rival_provider, case.rival_algorithm
    return registry.family(provider, algorithm) if isinstance(provider, str) else None


def _draw_panel(axes: Axes, title: str, layers: list[str], batches: list[int], cases: pd.DataFrame) -> None:
    cells, colours, lost = [], [], []
    for case in each(cases):
        x, y = batches.index(case.batch), layers.index(layer_label(case))
        family = _family(case)
        cells.append([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)])
        colours.append(registry.COLOURS[family] if family else PALE)
        if case.speedup == case.speedup:
            ink = "white" if _is_dark(colours[-1]) else DARK
            axes.text(x + 0.5, y + 0.53, f"{case.speedup:.2f}", size=SMALL, color=ink, ha="center", va="center")
        if case.speedup < 1:
            lost.append([(x + 0.04, y + 0.1), (x + 0.96, y + 0.1), (x + 0.96, y + 0.9), (x + 0.04, y + 0.9)])
    axes.add_collection(PolyCollection(cells, facecolors=colours, edgecolors="white", linewidths=0.8))
    axes.add_collection(PolyCollection(lost, facecolors="none", edgecolors=DARK, linewidths=1.2))
    axes.set_xlim(0, len(batches))
    axes.set_ylim(len(layers), 0)
    axes.set_xticks([x + 0.5 for x in range(len(batches))], [str(batch) for batch in batches], size=TEXT)
    axes.set_yticks([y + 0.5 for y in range(len(layers))], layers, size=SMALL)
    axes.tick_params(length=0, pad=2, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.set_title(title, size=TEXT, weight="bold", pad=4, color=DARK)
    axes.spines[:].set_visible(False)


def _is_dark(colour: str) -> bool:
    """Whether white text reads better on a colour, by its luminance."""
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.55


def _legend(cases: pd.DataFrame) -> list[Patch]:
    """A patch for each family of rivals, in the registry's order, with the number of its cases."""
    found: dict[str, tuple[str, int]] = {}
    for case in each(cases):
        if family := _family(case):
            provider = registry.PROVIDERS[case.rival_provider]
            in_colours = len(set(provider.colours.values())) > 1
            label = registry.shown(provider.name, case.rival_algorithm) if in_colours else provider.label
            found[family] = (label, found.get(family, ("", 0))[1] + 1)
    patches = [
        Patch(facecolor=registry.COLOURS[family], label=f"{found[family][0]} ({found[family][1]})")
        for family in registry.COLOURS
        if family in found
    ]
    if cases.rival_us.isna().any():
        patches.append(Patch(facecolor=PALE, label="nothing to compare with"))
    return patches
