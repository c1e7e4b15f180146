"""cuConv in FP32 beside cuDNN in half precision: at which batch sizes FP16 is faster, and by how much."""

from __future__ import annotations

import pandas as pd

from harness.precision import FP16
from harness.report.speedups import by_batch, grid_table
from harness.store.markdown import of, times
from harness.sweep.comparisons import CASE, Results, fastest, geometric_mean, rivals, summarise, timed

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


def half_table(results: Results) -> str:
    """A sentence and a table of the speedups by batch and filter size. Without rows it is the command to run."""
    rows = compare_with_half(results)
    if rows.empty and not timed(results.frame, FP16).empty:
        return f"cuConv in FP32 was not measured beside cuDNN in half precision: {OURS}."
    if rows.empty:
        return f"cuDNN in half precision was not measured on {results.device}: {REMEDY}."
    ahead = [batch for batch, cases in by_batch(rows) if batch != "all" and geometric_mean(cases.speedup.dropna()) > 1]
    total = summarise(rows)
    sentence = (
        f"{results.shown(results.subject)} in FP32 over the fastest cuDNN in FP16, NCHW or channels last, with FP32 "
        f"sums: geometric mean {times(total.geometric)}, faster on {of(total.wins, total.of)} cases. In the mean it is "
        f"faster at {'batch ' + ', '.join(ahead) if ahead else 'no batch size'}. A cell has the geometric mean, then "
        "the cases won of all."
    )
    return f"{sentence}\n\n{grid_table(rows)}"
