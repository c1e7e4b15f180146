"""Whether two measurements of the same cases differ: by their medians, their runs and the GPU's clocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.contenders.registry import shown
from harness.store.markdown import times
from harness.store.times import hot_runs
from harness.sweep.comparisons import CASE, algorithms, geometric_mean
from harness.sweep.records import KEY_COLUMNS

# Two times nine runs that do not overlap have p = 0.00004, and 0.004 with one outlier. Two times five runs have 0.008:
# with so few no difference is certain.
SIGNIFICANT = 0.005
THRESHOLD = 0.02  # the least difference that counts, as a share of the time
FASTER, SAME, SLOWER, UNCLEAR = VERDICTS = ("faster", "same", "slower", "unclear")
CLOCK = "sm_clock_mhz"  # the clock during a row's hot runs


def verdicts(
    old: pd.DataFrame, new: pd.DataFrame, threshold: float = THRESHOLD, keys: Sequence[str] = KEY_COLUMNS
) -> pd.DataFrame:
    """One row for each case that both measurements have: what it took in each, and which verdict follows.

    keys: the columns by which a row of old finds its row of new; together they are different in all rows of each. The
    columns of the result are CASE, the names of both algorithms (which_old, which_new), the median times old_us and
    new_us in microseconds, ratio (new over old) and verdict.

    A case is "same" where the medians differ by no more than the threshold. Beyond it the runs must differ too, by
    a two-sided Mann-Whitney test, and by more than the GPU's clocks do where both rows have them; otherwise the
    verdict is "unclear".
    """
    parts = [rows[[*keys, CLOCK]].assign(runs=_runs(rows), which=_names(rows)) for rows in (old, new)]
    joined = parts[0].merge(parts[1], on=list(keys), suffixes=("_old", "_new"))
    before, after = joined.runs_old, joined.runs_new
    found = joined[[*CASE, "which_old", "which_new"]].assign(
        old_us=list(map(np.median, before)), new_us=list(map(np.median, after))
    )
    found["ratio"] = found.new_us / found.old_us
    by_clock = (joined[f"{CLOCK}_old"] / joined[f"{CLOCK}_new"]).fillna(1.0)
    found["verdict"] = [_verdict(*runs, threshold) for runs in zip(before, after, by_clock, strict=True)]
    return found


def counted(found: pd.DataFrame) -> list[str]:
    """The cells of a table on rows of `verdicts`: how many are of each verdict, and the geometric mean of the ratio."""
    counts = [str(int((found.verdict == verdict).sum())) for verdict in VERDICTS]
    return [*counts, times(geometric_mean(found.ratio), 3)]


def _names(rows: pd.DataFrame) -> list[str]:
    return [shown(*pair) for pair in algorithms(rows)]


def _runs(rows: pd.DataFrame) -> pd.Series:
    """The times of each row's runs, in microseconds, as an array."""
    cells = hot_runs(rows).to_numpy(float)
    return pd.Series([row[~np.isnan(row)] for row in cells], index=rows.index, dtype=object)


def _verdict(old: np.ndarray, new: np.ndarray, by_clock: float, threshold: float) -> str:
    """by_clock: the ratio of the times that the clocks alone would give a kernel whose time is all work of the SMs."""
    ratio = float(np.median(new) / np.median(old))
    if max(ratio, 1 / ratio) <= 1 + threshold:
        return SAME
    clocks_explain_some = (ratio > 1) == (by_clock > 1)
    unexplained = ratio / by_clock if clocks_explain_some else ratio
    if (unexplained > 1) != (ratio > 1) or max(unexplained, 1 / unexplained) <= 1 + threshold:
        return UNCLEAR
    from scipy.stats import mannwhitneyu  # takes most of a second, which most reports need not wait for

    if mannwhitneyu(old, new, method="exact").pvalue >= SIGNIFICANT:
        return UNCLEAR
    return SLOWER if ratio > 1 else FASTER
