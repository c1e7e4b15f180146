"""The figures of the results, drawn from measurements.csv and environment.json alone.

plots/DEVICE/SWEEP/overview.png                   the speedup of auto on every case, for the README
plots/DEVICE/SWEEP/speedup_SUBJECT_KxK.png        the paper's three figures, in the paper's range of batch sizes
plots/DEVICE/SWEEP/speedup_SUBJECT_KxK_full.png   all batch sizes, where that is more: a map of numbers
plots/DEVICE/SWEEP/speedup_tf32_KxK.png           auto in TF32 over the best cuDNN with TF32 allowed
plots/DEVICE/SWEEP/rivals.png                     the fastest rival of each case, and the speedup over it

The figures are of hot times; those of another time are in a folder of its name, plots/DEVICE/SWEEP/cold for example.
The same data draws the same bytes. `python -m harness report figures` redraws all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure

from harness.precision import FP32, TF32
from harness.report.figures import style
from harness.report.figures.maps import rivals_figure, speedup_map
from harness.report.figures.overview import overview_figure
from harness.report.figures.speedup import speedup_figure
from harness.report.speedups import tf32_layouts, title_with_tf32
from harness.store.times import HOT, NOTES
from harness.sweep.comparisons import Results, compare_with_tf32, each, grouped, layer_label
from harness.sweep.left_out import left_out
from harness.sweep.provenance import provenance

OVERVIEW = "overview"
PAPER_LARGEST_BATCH = {1: 64, 3: 16}  # the last batch size of the paper's figures; its figure of 5x5 shows all


def draw(results: Results, out: Path) -> list[Path]:
    """Draw every figure of one results folder into `out`, and return the paths of the files.

    Where no case has a speedup there is nothing to draw.
    """
    with matplotlib.style.context(["default", style.STYLE]):
        return [style.save(figure, out / stem) for stem, figure in figures(results)]


def figures(results: Results) -> Iterator[tuple[str, Figure]]:
    """Each figure of one results folder, with the stem of its files."""
    if not results.compared.speedup.notna().any():
        return
    rivals = results.comparison.rivals_label
    fp32 = _caption(results, results.frame[results.frame.precision == FP32])
    for (subject, k), cases in grouped(results.compared, ["subject", "k"]):
        title = f"Speedup of {results.shown(subject)} over {rivals}, {k}x{k} filters"
        stem, worst = f"speedup_{subject}_{k}x{k}", _worst(cases)
        shown = cases[cases.batch <= PAPER_LARGEST_BATCH.get(k, cases.batch.max())]
        rest = ", ".join(str(batch) for batch in sorted(set(cases.batch) - set(shown.batch)))
        if len(shown):
            left = f"Batch {rest}: see {stem}_full.png. " if rest else ""
            yield stem, speedup_figure(shown, title, rivals, [fp32, left + worst])
        if rest:
            yield f"{stem}_full", speedup_map(cases, title, [fp32, worst])
    for k, cases in grouped(compare_with_tf32(results, TF32), "k"):
        title = f"Speedup: {title_with_tf32(results, TF32)}, {k}x{k} filters"
        notes = [f"{_caption(results, results.frame)}{tf32_layouts(results)}", _worst(cases)]
        yield f"speedup_tf32_{k}x{k}", speedup_figure(cases, title, f"{rivals} with TF32 allowed", notes)
    mine = results.of_subject()
    if mine.speedup.notna().any():
        yield OVERVIEW, overview_figure(mine, results.shown(results.subject), rivals, fp32, *left_out(results))
        title = f"The fastest rival of each case, and the speedup of {results.shown(results.subject)} over it"
        yield "rivals", rivals_figure(mine, title, fp32)


def _caption(results: Results, rows: pd.DataFrame) -> str:
    """Where the rows were measured, and how, unless their times are hot."""
    where = provenance(results, rows)
    return where if results.time == HOT else f"{results.time.capitalize()}: {NOTES[results.time]}. {where}"


def _worst(cases: pd.DataFrame) -> str:
    """The smallest speedup of some rows of `compare`, and its case; empty where none has a speedup."""
    least = each(cases[cases.speedup.notna()].nsmallest(1, "speedup"))
    at = [f"{case.speedup:.2f}x ({layer_label(case)}, batch {case.batch})" for case in least]
    return f"Smallest speedup of all batch sizes: {at[0]}" if at else ""
