"""The style that all figures share: fonts, colours, axes, the caption, marks, and how files are written.

A README is read at about 900 pixels, so figures are WIDTH = 9 inches wide: a point is then as large as it says. No text
is smaller than SMALL points, but for numbers above narrow bars. Backgrounds are white and opaque, so figures read on
dark pages too.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image

from harness.store.csv_file import GEOMETRY
from harness.store.files import write_whole
from harness.sweep.comparisons import LAYER, each, layer_label

WIDTH = 9.0  # inches
TITLE, TEXT, SMALL = 11.0, 8.5, 7.5  # points
LINE = 0.17  # inches from a line of text to the next
NOTE = 138  # characters in a line of a note, which fill WIDTH
DIGIT = 0.066  # inches, the width of a digit of SMALL points
HEAD = 0.32  # inches of the title
DPI = 150
PALETTE_COLOURS = 128  # a PNG file has no more
DARK, GREY, PALE = "#222222", "#6b6b6b", "#d9d9d9"
FASTER, SLOWER = "#d1495b", "#e9b5bb"
NO_TIME, NO_RIVAL = "\u00d7", "\u25cb"  # marks instead of a speedup

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT,
    "axes.linewidth": 0.6,
}

Range = tuple[float, float]
APART, OUTSIDE = 0.1, 0.04  # inches: least gap between labels of ticks, and how far one may pass the axis's end
# Ticks of a logarithmic axis in each decade, from many to few.
TICKS = (
    (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 3, 4, 6, 8),
    (1, 2, 3, 5),
    (1, 2, 5),
    (1,),
)
DECADES = range(-4, 5)


def new_figure(height: float, title: str, notes: Sequence[str]) -> Figure:
    """An empty figure of WIDTH x height inches, with a title and a line of text for each note below it."""
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    figure.text(0.1 / WIDTH, 1 - 0.08 / height, title, size=TITLE, weight="bold", va="top", color=DARK)
    for i, note in enumerate(_lines(notes)):
        figure.text(0.1 / WIDTH, 1 - (HEAD + LINE * i) / height, note, size=TEXT, va="top", color=GREY)
    return figure


def head_height(notes: Sequence[str]) -> float:
    """The inches that the title and the notes of a figure take."""
    return HEAD + LINE * len(_lines(notes))


def _lines(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, NOTE)]


def layers_of(cases: pd.DataFrame) -> list[str]:
    """The labels of the layers of some rows of `compare`, each once, in order of their sizes."""
    return list(dict.fromkeys(layer_label(case) for case in each(cases.sort_values(LAYER))))


def labels_width(layers: Sequence[str]) -> float:
    """The inches that labels of layers take next to an axis."""
    return 0.25 + DIGIT * max(map(len, layers))


def layer_axis(axes: Axes, labels: Sequence[str]) -> None:
    """Label the lines of an axes from its top, with the title of these labels, HW-M-C, above them."""
    axes.set_yticks(range(len(labels)), labels, size=SMALL)
    axes.tick_params(axis="y", length=0, pad=3)
    axes.annotate("HW-M-C" if labels else "", xy=(0, 1), xycoords="axes fraction", xytext=(-10, 4),
                  textcoords="offset points", size=SMALL, weight="bold", color=GREY, ha="right")  # fmt: skip


def shown_speedup(case: Any) -> str:
    """The speedup of a row of `compare` with two decimals, or the mark that stands for it."""
    if case.speedup == case.speedup:
        return f"{case.speedup:.2f}"
    return NO_RIVAL if case.rival_us != case.rival_us else NO_TIME


def key(cases: pd.DataFrame, texts: Iterable[str]) -> list[str]:
    """A note that explains the labels of layers of some rows of `compare`, and the marks in their texts."""
    layers, shown = layers_of(cases), "".join(texts)
    label = ["HW-M-C: input size, filters, input channels"]
    label += [f"-{name[0]}: {name}" for name in GEOMETRY if any(f"-{name[0]}" in layer for layer in layers)]
    label += ["p: padding"] if any(" p" in layer for layer in layers) else []
    marks = {NO_TIME: "did not run", NO_RIVAL: "nothing to compare with"}
    return [", ".join(label), *(f"{mark}: {meaning}" for mark, meaning in marks.items() if mark in shown)]


def ratio_range(values: Sequence[float]) -> Range:
    """The ends of a logarithmic axis that has these ratios and 1 with some room, and at least from 0.8 to 1.25."""
    found = [value for value in values if math.isfinite(value)]
    return min([0.8, *(value / 1.12 for value in found)]), max([1.25, *(value * 1.12 for value in found)])


def ticks_between(ends: Range, inches: float, size: Callable[[str], float]) -> list[float]:
    """The ticks of a logarithmic axis between two ratios: as many round ones as have labels that do not touch.

    inches: the axis's length. size: the inches that a label takes along it. A label that would pass the axis's end, and
    so touch that of the next panel, is left out.
    """
    for digits in TICKS:
        ticks = []
        for tick in (digit * 10.0**decade for decade in DECADES for digit in digits):
            at, half = inches * math.log(tick / ends[0]) / math.log(ends[1] / ends[0]), size(f"{tick:g}") / 2
            if half - OUTSIDE <= at <= inches - half + OUTSIDE:
                ticks.append((at - half, at + half, tick))
        if all(one[1] + APART <= other[0] for one, other in pairwise(ticks)):
            return [tick for _, _, tick in ticks]
    return [1.0]


def logarithmic(axes: Axes, which: str, ends: Range) -> None:
    """Make the "x" or "y" axis logarithmic between two ratios, with ticks such as 0.5, 1 and 2."""
    axes.set(**{f"{which}scale": "log", f"{which}lim": ends})
    box, dpi = axes.get_window_extent(), axes.figure.dpi
    axis, pixels = (axes.xaxis, box.width) if which == "x" else (axes.yaxis, box.height)
    ticks = ticks_between(ends, pixels / dpi, lambda label: DIGIT * len(label) if which == "x" else 1.3 * TEXT / 72)
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_minor_locator(NullLocator())


def save(figure: Figure, stem: Path) -> Path:
    """Write a figure as STEM.png, and return its path. The same figure gives the same bytes."""
    png, pixels, few_colours = stem.with_name(stem.name + ".png"), io.BytesIO(), io.BytesIO()
    figure.savefig(pixels, format="png", dpi=DPI)
    image = Image.open(pixels).convert("RGB")
    image.quantize(PALETTE_COLOURS, dither=Image.Dither.NONE).save(few_colours, format="png", optimize=True)
    write_whole(png, few_colours.getvalue())
    return png
