"""Maps of speedups, and of shares of the floor, as numbers: a line for each layer, a column for each batch size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.contenders import registry
from harness.report import floor
from harness.report.figures import style
from harness.report.figures.style import DARK, NO_TIME, PALE, SMALL, TEXT, WIDTH
from harness.store.markdown import Column
from harness.sweep.comparisons import FILTER, each, grouped, layer_label, summarise

CELL_HEIGHT, PANEL_HEAD, LEGEND_LINE, LEGEND_COLUMNS = 0.165, 0.48, 0.2, 4  # inches, and a number of long labels
LEAST_CELL, MOST_CELL, LEAST_PANEL = 0.38, 1.1, 1.75  # inches wide; a panel is no narrower than its title
MARK = "*"
SUMMARY_LINES = 2  # below those of the layers
Panel = tuple[str, list[str], pd.DataFrame]  # filter size, layers, cases


class Scale(NamedTuple):
    """The colours of ranges of values: the first below ends[0], the next from there to ends[1], and so on."""

    ends: tuple[float, ...]
    colours: tuple[str, ...]
    unit: str = ""

    def colours_of(self, values: Iterable[float]) -> list[str]:
        """The colour of each value, PALE for NaN."""
        return [self.colours[bisect_right(self.ends, value)] if value == value else PALE for value in values]

    def legend(self, used: Iterable[str]) -> list[Patch]:
        """A patch with a label for each colour that is used."""
        between = [f"{low} to {high}{self.unit}" for low, high in pairwise(self.ends)]
        labels = [f"below {self.ends[0]}{self.unit}", *between, f"{self.ends[-1]}{self.unit} and more"]
        ranges = zip(self.colours, labels, strict=True)
        return [Patch(color=colour, label=label) for colour, label in ranges if colour in set(used)]


SPEEDUPS = Scale((0.5, 1, 1.5, 2, 3, 5), ("#4a7fb5", "#a9c6e2", "#fdeee6", "#f9d0bd", "#f0a48f", "#e0717a", "#b92d47"))
SHARES = Scale((20, 40, 60, 80, 100), ("#e6f1e8", "#c3dfc9", "#96c6a3", "#67ad7d", "#2f7d4f", "#123f28"), "%")


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
    coloured = cases.assign(
        text=[style.shown_speedup(case) for case in each(cases)],
        colour=[registry.COLOURS.get(family, PALE) for family in families],
        frame=[DARK if lost else "" for lost in cases.speedup < 1],
    )
    note = "Colour: the fastest rival, with its number of cases; number: speedup over it, framed where below 1"
    return _map_figure(coloured, title, [caption, note], legend, _summary(), LEGEND_COLUMNS)


def speedup_map(cases: pd.DataFrame, title: str, notes: Sequence[str], left_out: pd.Series, limit: str) -> Figure:
    """The map of one subject's rows of `compare`, with a panel for each filter size. Colours are ranges of the speedup.

    left_out: which rows have a mark, because their fastest rival needs more workspace than the limit.
    """
    if left_out.any():
        notes = [*notes, f"{MARK} a rival that needs over {limit} of workspace is left out, and would be the fastest"]
    coloured = cases.assign(
        text=[style.shown_speedup(case) + MARK * marked for case, marked in zip(each(cases), left_out, strict=True)],
        colour=SPEEDUPS.colours_of(cases.speedup),
        frame="",
    )
    return _map_figure(coloured, title, notes, SPEEDUPS.legend(coloured.colour), _summary())


def floor_map(cases: pd.DataFrame, floors: pd.Series, means: Sequence[Column], title: str, notes: Sequence[str]
              ) -> Figure:  # fmt: skip
    """The map of the shares of their floors that one subject's rows of `compare` reach, a panel for each filter size.

    floors: the floor of each row in microseconds. means: the lines below those of the layers. A frame marks the cases
    on which the fastest rival reaches more.
    """
    shares = floors / cases.mean_us
    colours = SHARES.colours_of(100 * shares)
    coloured = cases.assign(
        text=[floor.percent(share) if share == share else NO_TIME for share in shares],
        colour=colours,
        frame=[_ink(colour) if lost else "" for colour, lost in zip(colours, cases.speedup < 1, strict=True)],
    )
    return _map_figure(coloured, title, notes, SHARES.legend(colours), means)


def _summary() -> list[Column]:
    """The lines below the layers of a map of speedups."""

    def mean(cases: pd.DataFrame) -> str:
        geometric = summarise(cases).geometric
        return f"{geometric:.2f}" if geometric == geometric else ""

    def won(cases: pd.DataFrame) -> str:
        s = summarise(cases)
        return f"{s.wins}/{s.of}"

    return [("geometric mean", mean), ("cases won", won)]


def _map_figure(cases: pd.DataFrame, title: str, notes: Sequence[str], legend: list[Patch], summary: Sequence[Column],
                across: int = 0) -> Figure:  # fmt: skip
    """The map of rows that have a text, a colour, and the colour of a frame or "".

    summary: the SUMMARY_LINES lines below those of the layers. across: patches in a line of the legend, 0 for all.
    """
    batches = sorted(int(batch) for batch in cases.batch.unique())
    panels = [(f"{k}x{kw}", style.layers_of(part), part) for (k, kw), part in grouped(cases, FILTER)]
    labels = style.labels_width([*(name for name, _ in summary), *style.layers_of(cases)])
    columns = _stack(panels, int(WIDTH / (labels + max(LEAST_PANEL, LEAST_CELL * len(batches)))))
    notes = [*notes, "; ".join(style.key(cases, cases.text))]
    across = across or max(len(legend), 1)
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
            _draw_panel(axes, f"{size} filters, batch size:", layers, batches, members, summary)
    figure.legend(handles=legend, loc="lower left", ncols=across, frameon=False, fontsize=TEXT,
                  handlelength=1.2, handleheight=1.0, bbox_to_anchor=(0.05 / WIDTH, 0))  # fmt: skip
    return figure


def _tall(column: list[Panel]) -> float:
    return sum(PANEL_HEAD + CELL_HEIGHT * (len(layers) + SUMMARY_LINES) for _, layers, _ in column)


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


def _draw_panel(axes: Axes, title: str, layers: list[str], batches: list[int], cases: pd.DataFrame,
                summary: Sequence[Column]) -> None:  # fmt: skip
    cells, frames = [], []
    write: dict[str, Any] = {"size": SMALL, "ha": "center", "va": "center_baseline"}
    for case in each(cases):
        x, y = batches.index(case.batch), layers.index(layer_label(case))
        cells.append(_box(x, y, 0.5, 0.5))
        axes.text(x, y, case.text, color=_ink(case.colour), **write)
        if case.frame:
            frames.append(_box(x, y, 0.46, 0.4))
    axes.add_collection(PolyCollection(cells, facecolors=list(cases.colour), edgecolors="white", linewidths=0.8))
    inks = [ink for ink in cases.frame if ink]
    axes.add_collection(PolyCollection(frames, facecolors="none", edgecolors=inks, linewidths=1.2))
    for batch, members in grouped(cases, "batch"):
        for i, (_, cell) in enumerate(summary):
            axes.text(batches.index(batch), len(layers) + i, str(cell(members)), color=DARK, weight="bold", **write)
    axes.set_xlim(-0.5, len(batches) - 0.5)
    axes.set_ylim(len(layers) + SUMMARY_LINES - 0.5, -0.5)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches], size=TEXT)
    axes.tick_params(length=0, pad=2, top=False, labeltop=True, bottom=False, labelbottom=False)
    style.layer_axis(axes, [*layers, *(name for name, _ in summary)])
    axes.set_title(title, size=TEXT, weight="bold", pad=4, color=DARK)
    axes.spines[:].set_visible(False)


def _box(x: float, y: float, wide: float, tall: float) -> list[tuple[float, float]]:
    """The corners of a box around a point that reaches so far to each side."""
    return [(x - wide, y - tall), (x + wide, y - tall), (x + wide, y + tall), (x - wide, y + tall)]


def _ink(colour: str) -> str:
    """The colour of text that reads well on a colour, white or DARK, by its luminance."""
    red, green, blue = to_rgb(colour)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else DARK
