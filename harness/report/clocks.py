"""The same kernel timed twice in one sweep, as auto and by the name of the algorithm that auto chose.

Both rows are of one launch: equal kernels, parameters and data. What their times differ by is therefore noise of the
measurement, or the GPU's clock, which each row has.
"""

from __future__ import annotations

import pandas as pd

from harness.precision import FP32
from harness.report.speedups import labelled
from harness.store.markdown import Column, tabulate
from harness.store.times import hot_runs
from harness.sweep.comparisons import AUTO, BATCH_INVARIANT, CASE, Results, timed

OURS = "cuconv"
SAME_CLOCK = 0.005  # clocks that differ by less are equal
OTHER_CLOCK = 0.02  # from here on, times are expected to differ by as much
USUAL = 0.95


def pairs(results: Results) -> pd.DataFrame:
    """A row for each case that has both, in FP32: CASE, and the times and clocks of the first and the second row.

    Columns: algorithm; us_1 and us_2, the medians of the hot runs; clock_1, clock_2 in MHz and power_1, power_2 in W.
    """
    rows = timed(results.frame, FP32)
    rows = rows[(rows.provider == OURS) & rows.sm_clock_mhz.notna() & (rows.algorithm != BATCH_INVARIANT)]
    shown = rows.assign(us=hot_runs(rows).median(axis=1), clock=rows.sm_clock_mhz, power=rows.power_w)
    shown = shown[[*CASE, "algorithm", "detail", "us", "clock", "power"]]
    autos = shown[shown.algorithm == AUTO].drop(columns="algorithm")
    return autos.merge(shown[shown.algorithm != AUTO], on=[*CASE, "detail"], suffixes=("_1", "_2"))


def clocks_table(results: Results) -> str:
    """How far the two times of a pair differ at equal clocks, and the pairs of different clocks: times and clocks.

    Without clocks a sentence says so.
    """
    table = pairs(results)
    if table.empty:
        return f"No clocks were read on {results.device}."
    table = table.assign(longer=table.us_2 / table.us_1, lower=table.clock_1 / table.clock_2)
    equal = table[(table.lower - 1).abs() < SAME_CLOCK]
    apart = (equal.longer - 1).abs()
    other = table[(table.lower - 1).abs() >= OTHER_CLOCK]
    found = (
        f"At equal clocks, on {len(equal)} of {len(table)} cases, the two times differ by {apart.median():.1%} in the "
        f"median, by at most {apart.quantile(USUAL):.1%} on {USUAL:.0%} of the cases, and by {apart.max():.1%} at most."
    )
    columns: list[Column] = [
        ("kernel", lambda case: case.algorithm),
        ("us", lambda case: f"{case.us_1:.1f}"),
        ("us", lambda case: f"{case.us_2:.1f}"),
        ("MHz", lambda case: f"{case.clock_1:.0f}"),
        ("MHz", lambda case: f"{case.clock_2:.0f}"),
        ("W", lambda case: f"{case.power_1:.0f}"),
        ("W", lambda case: f"{case.power_2:.0f}"),
        ("time 2 / time 1", lambda case: f"{case.longer:.3f}"),
        ("clock 1 / clock 2", lambda case: f"{case.lower:.3f}"),
    ]
    if other.empty:
        return f"{found} No clocks differ by {OTHER_CLOCK:.0%} or more."
    shown = tabulate("HW-N-K-M-C", labelled(other), columns, left=(0, 1))
    return f"{found} The cases on which the clocks differ by {OTHER_CLOCK:.0%} or more:\n\n{shown}"
