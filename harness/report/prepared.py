"""The table of prepared weights: the time of conv2d over that of a prepared layer, both of one sweep."""

from __future__ import annotations

import pandas as pd

from harness.report.speedups import ALL, by_filter
from harness.store.markdown import Column, tabulate, times
from harness.sweep.comparisons import AUTO, CASE, Results, full_precision, geometric_mean, grouped
from harness.sweep.provenance import provenance

PLAIN, PREPARED = "cuconv", "cuconv_prepared"
REMEDY = "measure first with 'python -m harness.run --provider cuconv cuconv_prepared --algorithm auto'"


def gains(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns CASE and gain: the time of conv2d over that of the prepared layer, of cases with both."""
    rows = _rows(frame)
    plain, prepared = (rows[rows.provider == name][[*CASE, "mean_us"]] for name in (PLAIN, PREPARED))
    both = plain.merge(prepared, on=CASE, suffixes=("", "_prepared"))
    return both[CASE].assign(gain=both.mean_us / both.mean_us_prepared)


def _rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The times of `auto` in FP32, by conv2d and by prepared layers."""
    rows = full_precision(frame)
    return rows[(rows.algorithm == AUTO) & rows.provider.isin((PLAIN, PREPARED))]


def prepared_table(results: Results) -> str:
    """Batch sizes x filter sizes: the geometric mean of `gains` of a sweep, its least and its largest.

    Without rows of both a sentence says what to run.
    """
    found = gains(results.frame)
    if found.empty:
        return f"Not measured on {results.device}: {REMEDY}."
    groups = [*((str(batch), rows) for batch, rows in grouped(found, "batch")), (ALL, found)]
    columns: list[Column] = [
        *by_filter(found, lambda rows: times(geometric_mean(rows.gain), 3)),
        ("least", lambda rows: times(rows.gain.min())),
        ("most", lambda rows: times(rows.gain.max())),
    ]
    note = f"Time of conv2d over time of the prepared layer, in FP32: geometric means of {len(found)} cases."
    return f"{note}\n\n{tabulate('batch', groups, columns)}\n\nMeasured on {provenance(results, _rows(results.frame))}."
