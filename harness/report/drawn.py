"""Layers that a seed draws: how fast auto is on them, and how well it chooses there.

The sweep `random` has layers that nobody chose, so it shows cliffs that the layers of networks do not reach.
"""

from __future__ import annotations

import pandas as pd

from harness.precision import MEASURED, TF32
from harness.report.choice import choice, warned
from harness.report.speedups import first_ratio, labelled, worst_table
from harness.store.markdown import Column, markdown, of, tabulate, times
from harness.sweep.comparisons import (
    Results,
    compare,
    compare_with_tf32,
    geometric_mean,
    summarise,
)

RANDOM = "random"  # the sweep of configs/random.yaml
WORST = 5  # cases in each table of the worst
QUANTILE = 0.95  # a share of the cases


def drawn_table(results: Results) -> str:
    """The speedup and the regret of auto over a sweep, with a column for each measured precision, and its worst cases.

    The speedup is over the fastest rival in the same precision; in TF32 a rival may also be in FP32. A case that auto
    cannot compute counts as lost. Regret is the time of auto over that of the fastest of the library's algorithms,
    each called by name. Empty where auto has neither.
    """
    found = {precision: (speedups(results, precision), choice(results, precision)) for precision in MEASURED}
    found = {precision: tables for precision, tables in found.items() if any(map(len, tables))}
    if not found:
        return ""
    columns = {precision: _facts(results, *tables) for precision, tables in found.items()}
    labels = list(next(iter(columns.values())))
    rows = [[label, *(column[label] for column in columns.values())] for label in labels]
    parts = [markdown(["", *(precision.upper() for precision in found)], rows)]
    for precision, (compared, chosen) in found.items():
        if len(ran := compared.dropna(subset="speedup")):
            parts += [f"The smallest speedups in {precision.upper()}:", worst_table(results, ran, WORST)]
        if len(chosen):
            table = warned(_largest_regrets(chosen), results, precision)
            parts += [f"The largest regrets in {precision.upper()}:", table]
    return "\n\n".join(parts)


def speedups(results: Results, precision: str) -> pd.DataFrame:
    """The rows of `compare` of the first subject in one precision, for the cases on which a rival has a time.

    No rows where the subject has no time in this precision.
    """
    rows = compare_with_tf32(results, TF32) if precision == TF32 else compare(results, precision, (precision,))
    rows = rows[(rows.subject == results.subject) & rows.rival_us.notna()]
    return rows if rows.mean_us.notna().any() else rows.iloc[:0]


def _facts(results: Results, compared: pd.DataFrame, chosen: pd.DataFrame) -> dict[str, str]:
    """The column of one precision: a cell for each label."""
    total = summarise(compared)
    regret = chosen.behind
    return {
        f"speedup over {results.comparison.rivals_label}, geometric mean": times(total.geometric),
        "cases lost": of(total.of - total.wins, total.of),
        "least speedup": first_ratio(compared.nsmallest(1, "speedup"), "speedup"),
        "regret, geometric mean": times(geometric_mean(regret), 3),
        f"regret of {QUANTILE:.0%} of the cases, at most": times(float(regret.quantile(QUANTILE))),
        "largest regret": first_ratio(chosen.nlargest(1, "behind"), "behind"),
    }


def _largest_regrets(chosen: pd.DataFrame) -> str:
    columns: list[Column] = [
        ("auto, us", lambda case: f"{case.mean_us:.2f}"),
        ("took", lambda case: case.chosen),
        ("fastest, us", lambda case: f"{case.best_us:.2f}"),
        ("which is", lambda case: case.best_algorithm),
        ("regret", lambda case: times(case.behind)),
    ]
    return tabulate("HW-N-K-M-C", labelled(chosen.nlargest(WORST, "behind")), columns, left=(0, 2, 4))
