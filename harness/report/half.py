"""cuConv in channels last compared with cuDNN in the same precision, and cuConv in FP32 with cuDNN in FP16."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from harness.contenders.registry import AUTO_NHWC, PROVIDERS
from harness.precision import FP16, FP32, TF32
from harness.report import floor
from harness.report.speedups import grid_table
from harness.store.markdown import of, times
from harness.store.times import COLD, SEPARATED
from harness.sweep.comparisons import (
    CASE,
    Results,
    compare,
    fastest,
    geometric_mean,
    grouped,
    rivals,
    summarise,
    timed,
)
from harness.sweep.provenance import provenance

OURS = "measure it into the same folder with 'python -m harness.run --provider cuconv --algorithm auto'"
REMEDY = "measure with 'python -m harness.run --precision fp16' on a GPU"


def compare_with_half(results: Results) -> pd.DataFrame:
    """The speedup of the first subject in FP32 over the fastest cuDNN in FP16, for each case that has an FP16 time.

    The columns are those of `compare`.
    """
    half = fastest(rivals(timed(results.frame, FP16), results.comparison))
    mine = results.of_subject().drop(columns=["rival_us", "rival_provider", "rival_algorithm", "speedup"])
    names = {"mean_us": "rival_us", "provider": "rival_provider", "algorithm": "rival_algorithm"}
    both = mine.merge(half[[*CASE, *names]].rename(columns=names), on=CASE)
    return both.assign(speedup=both.rival_us / both.mean_us)


def _rival_labels(results: Results, precision: str) -> str:
    """The labels of the rivals that have a time in a precision."""
    measured = set(rivals(timed(results.frame, precision), results.comparison).provider)
    return " and ".join(entry.label for name, entry in PROVIDERS.items() if name in measured)


def in_one_precision(results: Results, precision: str) -> tuple[Results, pd.DataFrame]:
    """The first subject against rivals in the same precision: its results, and its rows of `compare` with a time.

    The subject in TF32 is auto_nhwc. A row has the time of the subject, of a rival, or of both.
    """
    if precision == TF32:
        results = replace(results, chosen=(results.comparison.provider, AUTO_NHWC))
    rows = results.compared if precision == FP32 else compare(results, precision, (precision,))
    rows = rows[rows.subject == results.subject]
    return results, rows.dropna(subset=["mean_us", "rival_us"], how="all")


def in_channels_last(results: Results, precision: str) -> str:
    """Sentences and a table: cuConv against its rivals, all in one precision; empty where there is no pair.

    cuConv's tensors are channels last, in TF32 too; rivals may have either order.

    The table has a cell for each batch and filter size: geometric mean of the speedups, and cases won of all. Where
    the floors of the cases are known, two columns have the share of them that ours and the fastest rival reach.
    """
    results, rows = in_one_precision(results, precision)
    rows = rows.dropna(subset="speedup")
    if rows.empty:
        return ""
    name, who = precision.upper(), _rival_labels(results, precision)
    sentence = (
        f"{results.shown(results.subject)} in {name}, channels last, over the fastest of {who} in {name}, NCHW or "
        f"channels last, {results.time}, on {results.device}: {_won(rows)} "
        f"These are {of(len(rows), len(results.frame.drop_duplicates(CASE)))} cases of the sweep, measured on "
        f"{provenance(results, timed(results.frame, precision))}."
    )
    shares = floor.columns(results, rows, precision)
    sentences = " ".join([sentence, floor.explained(results.device, precision)] if shares else [sentence])
    return f"{sentences}\n\n{grid_table(rows, shares)}"


def at_other_times(results: Results, precision: str) -> str:
    """Separated times in a sentence and a table, as `in_channels_last` tells hot ones, and cold times in a sentence.

    A table of cold times would be nearly that of separated ones. results: with hot times.
    """
    parts = []
    for time in (SEPARATED, COLD):
        rows = in_one_precision(results.at(time), precision)[1].dropna(subset="speedup")
        if not rows.empty:
            parts.append(f"{time.capitalize()}, in {precision.upper()}: {_won(rows)}")
            parts += [grid_table(rows)] if time == SEPARATED else []
    return "\n\n".join(parts)


def _won(rows: pd.DataFrame) -> str:
    """The speedups of rows of `compare` in words."""
    total = summarise(rows)
    return (
        f"geometric mean {times(total.geometric)}, faster on {of(total.wins, total.of)} cases, least "
        f"{times(float(rows.speedup.min()))}."
    )


def half_table(results: Results) -> str:
    """A sentence and a table of the speedups by batch and filter size. Without rows it is the command to run."""
    rows = compare_with_half(results)
    if rows.empty and not timed(results.frame, FP16).empty:
        return f"cuConv in FP32 was not measured beside cuDNN in half precision: {OURS}."
    if rows.empty:
        return f"There are no rows of cuDNN in half precision for {results.device}: {REMEDY}."
    ahead = [str(batch) for batch, cases in grouped(rows, "batch") if geometric_mean(cases.speedup) > 1]
    total = summarise(rows)
    who = _rival_labels(results, FP16)
    sentence = (
        f"{results.shown(results.subject)} in FP32 over the fastest of {who} in FP16, NCHW or channels last, with "
        f"FP32 sums: geometric mean {times(total.geometric)}, faster on {of(total.wins, total.of)} cases. In the mean "
        f"it is faster at {'batch ' + ', '.join(ahead) if ahead else 'no batch size'}. Measured on "
        f"{provenance(results, timed(results.frame, FP16))}."
    )
    return f"{sentence}\n\n{grid_table(rows)}"
