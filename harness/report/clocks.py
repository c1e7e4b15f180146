"""The same kernel timed twice in one sweep, as auto and by the name of the algorithm that auto chose.

Both rows are of one launch: equal kernels, parameters and data. What their times differ by is therefore noise of the
measurement, or the GPU's clock, which each row has.
"""

from __future__ import annotations

import pandas as pd

from harness.precision import FP32
from harness.store.markdown import markdown
from harness.store.times import hot_runs
from harness.sweep.comparisons import AUTO, BATCH_INVARIANT, CASE, Results, each, problem_of, timed

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
    body = [
        [
            problem_of(case).label,
            case.algorithm,
            *(f"{us:.1f}" for us in (case.us_1, case.us_2)),
            *(f"{clock:.0f}" for clock in (case.clock_1, case.clock_2)),
            *(f"{power:.0f}" for power in (case.power_1, case.power_2)),
            f"{case.longer:.3f}",
            f"{case.lower:.3f}",
        ]
        for case in each(other)
    ]
    header = ["HW-N-K-M-C", "kernel", "us", "us", "MHz", "MHz", "W", "W", "time 2 / time 1", "clock 1 / clock 2"]
    if not body:
        return f"{found} No clocks differ by {OTHER_CLOCK:.0%} or more."
    return f"{found} The cases on which the clocks differ by {OTHER_CLOCK:.0%} or more:\n\n" + markdown(
        header, body, left=(0, 1)
    )
