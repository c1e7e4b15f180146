"""The table of prepared weights: the time of conv2d over that of a prepared layer, both of one run."""

from __future__ import annotations

import pandas as pd

from harness.report.speedups import ALL, by_filter
from harness.store.markdown import Column, tabulate, times
from harness.sweep.comparisons import AUTO, CASE, Results, full_precision, geometric_mean, grouped
from harness.sweep.provenance import provenance

SWEEP = "prepared"  # results/DEVICE/prepared: the cases of the paper's sweep by conv2d and by prepared layers
PLAIN, PREPARED = "cuconv", "cuconv_prepared"
REMEDY = (
    "measure first with 'python -m harness.run --provider cuconv cuconv_prepared --algorithm auto "
    "--out results/DEVICE/prepared'"
)


def gains(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns CASE and gain: the time of conv2d over that of the prepared layer, of cases with both."""
    rows = full_precision(frame)
    rows = rows[rows.algorithm == AUTO]
    plain, prepared = (rows[rows.provider == name][[*CASE, "mean_us"]] for name in (PLAIN, PREPARED))
    both = plain.merge(prepared, on=CASE, suffixes=("", "_prepared"))
    return both[CASE].assign(gain=both.mean_us / both.mean_us_prepared)


def prepared_table(results: Results) -> str:
    """Batch sizes x filter sizes: the geometric mean of `gains` of a device, its least and its largest.

    Without results of both a sentence says what to run.
    """
    other = results.beside(SWEEP)
    found = gains(other.frame) if other else None
    if other is None or found is None or found.empty:
        return f"Not measured on {results.device}: {REMEDY}."
    groups = [*((str(batch), rows) for batch, rows in grouped(found, "batch")), (ALL, found)]
    columns: list[Column] = [
        *by_filter(found, lambda rows: times(geometric_mean(rows.gain), 3)),
        ("least", lambda rows: times(rows.gain.min())),
        ("most", lambda rows: times(rows.gain.max())),
    ]
    note = (
        "Time of conv2d over time of the prepared layer, in FP32: geometric means over the cases of the paper's sweep."
    )
    return f"{note}\n\n{tabulate('batch', groups, columns)}\n\nMeasured on {provenance(other, other.frame)}."
