"""The figures of the results, drawn from measurements.csv and environment.json alone.

plots/DEVICE/SWEEP/overview.png               the speedup of auto on every case
plots/DEVICE/SWEEP/map.png                    the same as numbers: a line for each layer, a column for each batch size
plots/DEVICE/SWEEP/rivals.png                 the fastest rival of each case
plots/DEVICE/SWEEP/floor.png                  the share of its floor that each case reaches in FP32, where floors are
                                              known; floor_tf32, floor_fp16 and floor_bf16 are of other precisions
plots/DEVICE/paper/speedup_SUBJECT_KxK.png    the paper's three figures, in the paper's range of batch sizes
plots/DEVICE/random/planes.png                speedup and regret by plane and filter size. This sweep has no other
                                              figure, since each of its layers has a batch size of its own

The figures are of hot times; those of another time are in a folder of its name, plots/DEVICE/SWEEP/cold for example.
The same data draws the same bytes. `python -m harness report figures` redraws all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure

from harness.precision import FP32, MEASURED
from harness.report import floor
from harness.report.choice import choice
from harness.report.drawn import RANDOM, speedups
from harness.report.figures import style
from harness.report.figures.maps import floor_map, rivals_figure, speedup_map
from harness.report.figures.overview import overview_figure
from harness.report.figures.planes import planes_figure
from harness.report.figures.speedup import speedup_figure
from harness.report.half import in_one_precision
from harness.store.times import NOTES
from harness.sweep.comparisons import FILTER, Results, each, grouped, layer_label
from harness.sweep.left_out import left_out
from harness.sweep.provenance import provenance

PAPER, OVERVIEW = "paper", "overview"
PAPER_LARGEST_BATCH = {1: 64, 3: 16}  # the last batch size of the paper's figures; its figure of 5x5 shows all


def draw(results: Results, out: Path) -> list[Path]:
    """Draw every figure of one results folder into `out`, and return the paths of the files.

    Where no case has a speedup there is nothing to draw.
    """
    with matplotlib.style.context(["default", style.STYLE]):
        return [style.save(figure, out / stem) for stem, figure in figures(results)]


def figures(results: Results) -> Iterator[tuple[str, Figure]]:
    """Each figure of one results folder, with the stem of its files."""
    yield from _speedups(results)
    if results.sweep != RANDOM:
        for precision in MEASURED if results.chosen is None else (FP32,):  # in others, the subject is the library's
            yield from _floor(results, precision)


def _speedups(results: Results) -> Iterator[tuple[str, Figure]]:
    """The figures of speedups in FP32."""
    if not results.compared.speedup.notna().any():
        return
    rivals = results.comparison.rivals_label
    fp32 = _caption(results, results.frame[results.frame.precision == FP32])
    if results.sweep == RANDOM:
        compared, subject = speedups(results, FP32), results.shown(results.subject)
        yield "planes", planes_figure(compared, choice(results, FP32), subject, rivals, fp32)
        return
    for (subject, k, kw), cases in grouped(results.compared, ["subject", *FILTER]) if results.sweep == PAPER else ():
        shown = cases[cases.batch <= PAPER_LARGEST_BATCH.get(k, cases.batch.max())]
        if len(shown):
            title = f"Speedup of {results.shown(subject)} over {rivals}, {k}x{kw} filters"
            yield f"speedup_{subject}_{k}x{kw}", speedup_figure(shown, title, rivals, [fp32, _worst(cases)])
    mine = results.of_subject()
    if mine.speedup.notna().any():
        subject = results.shown(results.subject)
        marked, limit = left_out(results)
        yield OVERVIEW, overview_figure(mine, subject, rivals, fp32, marked, limit)
        yield (
            "map",
            speedup_map(mine, f"Speedup of {subject} over {rivals} in FP32", [fp32, _worst(mine)], marked, limit),
        )
        title = f"The fastest rival of each case, and the speedup of {subject} over it"
        yield "rivals", rivals_figure(mine, title, fp32)


def _floor(results: Results, precision: str) -> Iterator[tuple[str, Figure]]:
    """The map of the shares of the floor in one precision, where floors are known and a case has a speedup."""
    results, rows = in_one_precision(results, precision)
    floors = floor.of_rows(results, rows, precision)
    if floors is None or not rows.speedup.notna().any():
        return
    what = "FP32" if precision == FP32 else f"{precision.upper()}, channels last"
    notes = [
        _caption(results, results.frame[results.frame.precision == precision]),
        f"Number: floor / time; {floor.meaning(results.device, precision)}. "
        "Framed where the fastest rival reaches more; the last lines are geometric means",
    ]
    if (floors > rows.mean_us).any():
        notes.append(floor.above(precision).removesuffix("."))
    title = f"Share of the floor that {results.shown(results.subject)} reaches in {what}"
    means = floor.columns(results, rows, precision)
    yield "floor" if precision == FP32 else f"floor_{precision}", floor_map(rows, floors, means, title, notes)


def _caption(results: Results, rows: pd.DataFrame) -> str:
    """How and where the rows were measured."""
    return f"{results.time.capitalize()}: {NOTES[results.time]}. {provenance(results, rows)}"


def _worst(cases: pd.DataFrame) -> str:
    """The smallest speedup of some rows of `compare`, and its case; empty where none has a speedup."""
    least = each(cases[cases.speedup.notna()].nsmallest(1, "speedup"))
    at = [f"{case.speedup:.2f}x ({case.k}x{case.kw} {layer_label(case)}, batch {case.batch})" for case in least]
    return f"Smallest speedup of all batch sizes: {at[0]}" if at else ""
