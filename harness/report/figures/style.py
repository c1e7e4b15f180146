"""The style that all figures share: fonts, colours, the logarithmic axis, the caption, and how files are written.

A README is read at about 900 pixels, so figures are WIDTH = 9 inches wide: a point is then as large as it says, and no
text is smaller than SMALL points. Backgrounds are white and opaque, so figures read on dark pages too.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from PIL import Image

from harness.store.files import write_whole
from harness.sweep.comparisons import LAYER, each, layer_label

WIDTH = 9.0  # inches
TITLE, TEXT, SMALL = 11.0, 8.5, 7.5  # points
LINE = 0.17  # inches from a line of text to the next
HEAD = 0.32  # inches of the title
DPI = 150
PALETTE_COLOURS = 64  # of a PNG file
DARK, GREY, PALE = "#222222", "#6b6b6b", "#d9d9d9"
FASTER, SLOWER = "#d1495b", "#e9b5bb"

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT,
    "axes.linewidth": 0.6,
}

Range = tuple[float, float]
# Ticks of a logarithmic axis in each decade, from many to few.
TICKS = ((1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 4, 6, 8), (1, 2, 5), (1,))
DECADES = range(-4, 5)


def new_figure(height: float, title: str, notes: Sequence[str]) -> Figure:
    """An empty figure of WIDTH x height inches, with a title and a line of text for each note below it."""
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    figure.text(0.1 / WIDTH, 1 - 0.08 / height, title, size=TITLE, weight="bold", va="top", color=DARK)
    for i, note in enumerate(notes):
        figure.text(0.1 / WIDTH, 1 - (HEAD + LINE * i) / height, note, size=TEXT, va="top", color=GREY)
    return figure


def head_height(notes: Sequence[str]) -> float:
    """The inches that the title and the notes of a figure take."""
    return HEAD + LINE * len(notes)


def layers_of(cases: pd.DataFrame) -> list[str]:
    """The labels of the layers of some rows of `compare`, each once, in order of their sizes."""
    return list(dict.fromkeys(layer_label(case) for case in each(cases.sort_values(LAYER))))


def labels_width(layers: Sequence[str]) -> float:
    """The inches that labels of layers take beside an axis."""
    return 0.25 + 0.066 * max(map(len, layers))


def ratio_range(values: Sequence[float]) -> Range:
    """The ends of a logarithmic axis that has these ratios and 1 with some room, and at least from 0.8 to 1.25."""
    found = [value for value in values if math.isfinite(value)]
    return min([0.8, *(value / 1.12 for value in found)]), max([1.25, *(value * 1.12 for value in found)])


def ticks_between(ends: Range, most: int) -> list[float]:
    """The round ratios between two ratios, as ticks of an axis: at most `most`, unless even the roundest are more."""
    for digits in TICKS:
        ticks = [digit * 10.0**decade for decade in DECADES for digit in digits]
        shown = [tick for tick in ticks if ends[0] <= tick <= ends[1]]
        if len(shown) <= most:
            break
    return shown


def logarithmic(axes: Axes, which: str, ends: Range, most: int) -> None:
    """Make the "x" or "y" axis logarithmic between two ratios, with at most `most` ticks such as 0.5, 1 and 2."""
    axes.set(**{f"{which}scale": "log", f"{which}lim": ends})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(ticks_between(ends, most)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def save(figure: Figure, stem: Path) -> Path:
    """Write a figure as STEM.png, and return its path. The same figure gives the same bytes."""
    png, pixels, few_colours = stem.with_name(stem.name + ".png"), io.BytesIO(), io.BytesIO()
    figure.savefig(pixels, format="png", dpi=DPI)
    image = Image.open(pixels).convert("RGB")
    image.quantize(PALETTE_COLOURS, dither=Image.Dither.NONE).save(few_colours, format="png", optimize=True)
    write_whole(png, few_colours.getvalue())
    return png


def spread(count: int, width: float) -> np.ndarray:
    """Offsets that set `count` dots side by side in a strip of a width, centred on 0."""
    return (np.arange(count) - (count - 1) / 2) * (width / max(count, 1))
