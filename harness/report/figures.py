"""The figures, drawn from measurements.csv alone: python -m harness.plots

plots/DEVICE/SWEEP/speedup_SUBJECT_KxK.{svg,png}   the paper's three figures, in the paper's range of batch sizes
plots/DEVICE/SWEEP/speedup_SUBJECT_KxK_full.*      all batch sizes, where that is more
plots/DEVICE/SWEEP/speedup_tf32_KxK.*             cuConv in TF32 over the best cuDNN with TF32 allowed, all batch sizes
plots/DEVICE/SWEEP/winners.{svg,png}               which family of algorithms is fastest on each case

The same data draws the same bytes.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib.style
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

from harness.results import records
from harness import registry as roster
from harness.results.comparisons import (
    CASE,
    Results,
    Summary,
    algorithms,
    compare,
    compare_with_tf32,
    fastest,
    find_results,
    full_precision,
    layer_label,
    summarise,
)
from harness.report.headline import title_with_tf32
from harness.precision import TF32

PAPER_LARGEST_BATCH = {1: 64, 3: 16}  # the paper's figures stop here; 5x5 shows all

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text: small and searchable
    "svg.hashsalt": "cuconv",
}
DARK, GREY, PALE = "#222222", "#777777", "#dddddd"
DOT = {"marker": "o", "color": "white", "markersize": 2.6, "markeredgewidth": 0}
LOSS = "#e9b5bb"  # a pale tint of roster.COLOURS["cuconv"]

# Sizes of the bar charts: slots are bars, or gaps as wide; the rest is inches.
ROW_SLOTS, MIN_GROUP_SLOTS, GAP_SLOTS = 74, 9, 1.5
PLOT_WIDTH, WIDEST_SLOT, ROW_HEIGHT, GROUP_TITLE, HEAD, LEFT = 9.8, 0.24, 1.25, 0.42, 0.65, 0.55
CHARACTER = 0.056  # of a tick label

# Sizes of the map of winners, in inches.
CELL_WIDTH, CELL_HEIGHT, LABEL_WIDTH, PANEL_TITLE, LEGEND_LINE, LEGEND_COLUMNS = 0.36, 0.165, 0.9, 0.5, 0.19, 3


def draw(result: Results, out: Path) -> list[Path]:
    """Draw all figures of one results folder into `out`; the paths of the files written.

    Where ours were not measured there is no speedup to draw, and the map is all; where rivals were not, nothing is.
    """
    frame = records.read(result.csv_path)
    where = f"Measured on {result.device}, sweep {result.sweep}"
    table = compare(frame, result.device)
    written = []
    with matplotlib.style.context(["default", STYLE]):
        for (subject, k), cases in table.groupby(["subject", "k"]) if table.rival_us.notna().any() else ():
            for suffix, shown in _ranges(cases, k):
                figure = speedup_figure(shown, _title(subject, k, result.device), where)
                written += _save(figure, out / f"speedup_{subject}_{k}x{k}{suffix}")
        for k, cases in compare_with_tf32(frame, result.device, TF32).groupby("k"):
            title = f"Speedup: {title_with_tf32(result.device, TF32)}, {k}x{k} filters"
            written += _save(speedup_figure(cases, title, where), out / f"speedup_tf32_{k}x{k}")
        if set(full_precision(frame).provider) - {roster.comparison(result.device).provider}:
            written += _save(winners_figure(frame, where), out / "winners")
    return written


def _ranges(cases: pd.DataFrame, k: int) -> Iterator[tuple[str, pd.DataFrame]]:
    """File name suffix and cases: the paper's batch sizes, then all where that differs."""
    paper = cases[cases.batch <= PAPER_LARGEST_BATCH.get(k, cases.batch.max())]
    if len(paper):
        yield "", paper
    if len(paper) < len(cases):
        yield "_full", cases


def _title(subject: str, k: int, device: str) -> str:
    who = roster.comparison(device)
    return f"Speedup of {roster.PROVIDERS[who.provider].label} {subject} over {who.rivals_label}, {k}x{k} filters"


@dataclass(frozen=True, slots=True)
class Group:
    """The bars of one batch size, or as many as fit a row: rows of `compare`, from slot `start` on."""

    start: float
    cases: pd.DataFrame
    batch: int
    summary: Summary  # of the whole batch

    @property
    def end(self) -> float:
        return self.start + max(len(self.cases), MIN_GROUP_SLOTS)


def group_rows(cases: pd.DataFrame) -> list[list[Group]]:
    """Arrange the cases of one subject and filter size by batch, in rows of at most ROW_SLOTS slots."""
    rows: list[list[Group]] = [[]]
    for batch, members in cases.groupby("batch"):
        summary = summarise(members)
        for at in range(0, len(members), ROW_SLOTS):
            piece = members.iloc[at : at + ROW_SLOTS]
            start = rows[-1][-1].end + GAP_SLOTS if rows[-1] else 0
            if rows[-1] and start + max(len(piece), MIN_GROUP_SLOTS) > ROW_SLOTS:
                start = 0
                rows.append([])
            rows[-1].append(Group(start, piece, batch, summary))
    return rows


def speedup_figure(cases: pd.DataFrame, title: str, where: str) -> Figure:
    """The paper's bar chart for one subject and filter size: rows of `compare`, one bar each, grouped by batch."""
    rows = group_rows(cases)
    slots = max(row[-1].end for row in rows)
    slot = min(PLOT_WIDTH / slots, WIDEST_SLOT)
    labels = 0.15 + CHARACTER * max(len(layer_label(case)) for case in cases.itertuples())
    pitch = GROUP_TITLE + ROW_HEIGHT + labels
    width, height = LEFT + max(slots * slot, 6.8) + 0.15, HEAD + len(rows) * pitch
    figure = Figure(figsize=(width, height))
    _head(figure, title, where, _key(cases))
    top = _axis_top(cases.speedup.dropna())
    for i, row in enumerate(rows):
        bottom = height - HEAD - (i + 1) * pitch + labels
        box = (LEFT / width, bottom / height, row[-1].end * slot / width, ROW_HEIGHT / height)
        axes = figure.add_axes(box)
        _prepare(axes, row, top)
        for group in row:
            _draw_group(axes, group, top)
    return figure


def _head(figure: Figure, title: str, *notes: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(0.1 / width, 1 - 0.1 / height, title, size=10, weight="bold", va="top", color=DARK)
    for i, note in enumerate(notes):
        figure.text(0.1 / width, 1 - (0.3 + 0.15 * i) / height, note, size=7, va="top", color=GREY)


def _key(cases: pd.DataFrame) -> str:
    parts = ["Labels: HW-M-C (input size, filters, depth)", "dark: faster, pale: slower", "dashed: geometric mean"]
    if (cases.rival_us.notna() & cases.mean_us.isna()).any():
        parts.append("\u00d7: did not run")
    if cases.rival_us.isna().any():
        parts.append("\u25cb: nothing to compare with")
    return "; ".join(parts)


def _axis_top(speedups: pd.Series) -> float:
    """The upper end of the speedup axis: all bars if they are of one size; else the few tallest are cut."""
    if speedups.empty:
        return 1.5
    return max(1.25, min(1.05 * speedups.max(), max(3.0, 2 * speedups.quantile(0.75))))


def _prepare(axes: Axes, row: list[Group], top: float) -> None:
    cases = [
        (group.start + i + 0.5, layer_label(case)) for group in row for i, case in enumerate(group.cases.itertuples())
    ]
    axes.set_xlim(0, row[-1].end)
    axes.set_ylim(0, top)
    axes.set_xticks([x for x, _ in cases], [label for _, label in cases], rotation=90, size=6.5)
    axes.tick_params(axis="x", length=0, pad=2)
    axes.tick_params(axis="y", labelsize=7, length=2)
    axes.set_ylabel("speedup", size=7.5)
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axhline(1, color=DARK, linewidth=0.9, zorder=3)


def _draw_group(axes: Axes, group: Group, top: float) -> None:
    speedups = group.cases.speedup.tolist()
    at = [group.start + i + 0.5 for i in range(len(speedups))]
    bars = [(x, min(s, top), s) for x, s in zip(at, speedups, strict=True) if s == s]
    colours = [roster.COLOURS["cuconv"] if s > 1 else LOSS for *_, s in bars]
    # One collection instead of a patch per bar keeps the files small.
    outlines = [[(x - 0.4, 0), (x - 0.4, y), (x + 0.4, y), (x + 0.4, 0)] for x, y, _ in bars]
    axes.add_collection(PolyCollection(outlines, facecolors=colours, linewidths=0), autolim=False)
    for x, y, s in bars:
        if s > top:
            box = {"facecolor": roster.COLOURS["cuconv"], "edgecolor": "none", "pad": 0.4}  # over lines that cross it
            style = {"size": 6, "color": "white", "rotation": 90, "ha": "center", "va": "top", "zorder": 5}
            axes.text(x, 0.97 * y, f"{s:.1f}", bbox=box, **style)
    for x, case in zip(at, group.cases.itertuples(), strict=True):
        if case.speedup != case.speedup:
            mark = "\u25cb" if case.rival_us != case.rival_us else "\u00d7"
            axes.text(x, 0.02 * top, mark, size=6.5, color=GREY, ha="center", va="bottom")
    mean = group.summary.geometric
    if mean == mean:
        ends = [group.start, group.start + len(at)]
        axes.plot(ends, [min(mean, top)] * 2, color=DARK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
    if group.start:
        axes.axvline(group.start - GAP_SLOTS / 2, color=GREY, linewidth=0.5, ymax=1.25, clip_on=False)
    won = f"{group.summary.wins}/{group.summary.of} won"
    note = f"mean {mean:.2f}x, {won}" if mean == mean else won
    offset = {"xy": (group.start, top), "textcoords": "offset points", "color": DARK}
    axes.annotate(f"batch {group.batch}", xytext=(1, 14), size=8, weight="bold", **offset)
    axes.annotate(note, xytext=(1, 5), size=7, **offset)


def winners_figure(frame: pd.DataFrame, where: str) -> Figure:
    """The map of winners: a panel per filter size, a row per layer, a column per batch size.

    `frame` is that of `records.read` with at least one row that may win.
    """
    best = fastest(full_precision(frame))
    best["family"] = [roster.family(*pair) for pair in algorithms(best)]
    cases = frame.drop_duplicates(CASE).merge(best[[*CASE, "family"]], on=CASE, how="left")
    batches = sorted(int(batch) for batch in cases.batch.unique())
    columns = _stack([(int(k), _layers(members), members) for k, members in cases.groupby("k")])
    legend = _legend_handles(best, any_blank=cases.family.isna().any())
    pitch = LABEL_WIDTH + CELL_WIDTH * len(batches)
    width = max(pitch * len(columns), 5.2) + 0.15
    below = 0.25 + LEGEND_LINE * -(-len(legend) // LEGEND_COLUMNS)
    height = HEAD + max(_tall(column) for column in columns) + below
    figure = Figure(figsize=(width, height))
    _head(
        figure,
        "The fastest FP32 convolution of each case",
        where,
        "Rows: HW-M-C (input size, filters, depth); columns: batch size; in brackets: cases won",
    )
    for i, column in enumerate(columns):
        for j, (k, layers, members) in enumerate(column):
            left, tall = i * pitch + LABEL_WIDTH, CELL_HEIGHT * len(layers)
            bottom = height - HEAD - _tall(column[: j + 1])
            box = (left / width, bottom / height, (pitch - LABEL_WIDTH) / width, tall / height)
            _draw_panel(figure.add_axes(box), f"{k}x{k} filters", layers, batches, members)
    # A pair of handles is drawn one over the other.
    figure.legend(
        *zip(*legend, strict=True),
        loc="lower left",
        ncols=LEGEND_COLUMNS,
        frameon=False,
        fontsize=7.5,
        handlelength=1.2,
        handleheight=1.0,
        bbox_to_anchor=(0.1 / width, 0),
    )
    return figure


def _tall(column: list) -> float:
    return sum(PANEL_TITLE + CELL_HEIGHT * len(layers) for _, layers, _ in column)


def _stack(panels: list) -> list[list]:
    """Panels in columns, side by side, and one below the other where the tallest leaves the room."""
    tallest = max(_tall([panel]) for panel in panels)
    columns = [[panels[0]]]
    for panel in panels[1:]:
        if _tall([*columns[-1], panel]) <= tallest:
            columns[-1].append(panel)
        else:
            columns.append([panel])
    return columns


def _layers(cases: pd.DataFrame) -> list[str]:
    ordered = cases.sort_values(["h", "w", "m", "c", "pad"])
    return list(dict.fromkeys(layer_label(case) for case in ordered.itertuples()))


def _draw_panel(axes: Axes, title: str, layers: list[str], batches: list[int], cases: pd.DataFrame) -> None:
    cells, colours, ours = [], [], []
    for case in cases.itertuples():
        x, y = batches.index(case.batch), layers.index(layer_label(case))
        cells.append([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)])
        colours.append(roster.COLOURS.get(case.family, PALE))
        if case.family == "cuconv":
            ours.append((x + 0.5, y + 0.5))
    axes.add_collection(PolyCollection(cells, facecolors=colours, edgecolors="white", linewidths=0.8))
    if ours:  # marked, so that the map reads without colours too
        axes.plot(*zip(*ours, strict=True), linestyle="none", **DOT)
    axes.set_xlim(0, len(batches))
    axes.set_ylim(len(layers), 0)
    axes.set_xticks([x + 0.5 for x in range(len(batches))], [str(batch) for batch in batches], size=7)
    axes.set_yticks([y + 0.5 for y in range(len(layers))], layers, size=6.5)
    axes.tick_params(length=0, pad=2, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.set_title(title, size=8.5, weight="bold", pad=5, color=DARK)
    axes.spines[:].set_visible(False)


def _family_label(provider: str, algorithm: str) -> str:
    label = roster.PROVIDERS[provider].label
    return f"{label} {algorithm}" if provider in ("cudnn", "cpu") else label


def _legend_handles(best: pd.DataFrame, any_blank: bool) -> list[tuple]:
    """Pairs of handles and labels, in the order of roster.COLOURS."""
    names = best.assign(label=[_family_label(*pair) for pair in algorithms(best)])
    order = list(roster.COLOURS)
    legend = []
    for (family, label), count in sorted(
        names.groupby(["family", "label"]).size().items(), key=lambda item: order.index(item[0][0])
    ):
        handle = Patch(facecolor=roster.COLOURS[family])
        if family == "cuconv":
            handle = (handle, Line2D([], [], linestyle="none", **DOT))
        legend.append((handle, f"{label} ({count})"))
    if any_blank:
        legend.append((Patch(facecolor=PALE), "nothing ran"))
    return legend


def _save(figure: Figure, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    svg, png = stem.with_name(stem.name + ".svg"), stem.with_name(stem.name + ".png")
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=110)
    Image.open(pixels).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(png, optimize=True)
    return [svg, png]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.plots", description="Redraw the figures from the results.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of DEVICE/SWEEP/measurements.csv")
    parser.add_argument("--out", type=Path, default=Path("plots"), help="where DEVICE/SWEEP/ with the figures goes")
    parser.add_argument("--device", help="only this device's results")
    parser.add_argument("--sweep", help="only this sweep's results")
    options = parser.parse_args(arguments)
    try:
        for result in find_results(options.results, options.device, options.sweep):
            out = options.out / result.device / result.sweep
            written = draw(result, out)
            print(
                f"{out}: {len(written)} files"
                + ("" if written else f", for no row of {result.csv_path} has a time of a rival")
            )
    except records.ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
