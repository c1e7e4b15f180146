"""The table of conditions: whether auto wins under each, and how far it moves the times of both sides."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.experiments.conditions.rows import CONDITION_TIMES, CONDITIONS, OURS
from harness.store.markdown import markdown, of, times
from harness.store.times import HOT
from harness.sweep.comparisons import CASE, geometric_mean


def conditions_of(device: Path) -> str:
    """The table of the conditions.csv of results/DEVICE, or a sentence where there is none.

    Raises ResultsError where the file is something else.
    """
    rows = CONDITION_TIMES.find(device)
    return CONDITION_TIMES.missing(device.name) if rows is None else conditions_table(rows)


def conditions_table(rows: pd.DataFrame) -> str:
    """A line for each condition: the speedup of auto over the fastest rival, and times as multiples of the hot ones.

    rows: those of a conditions.csv, as `Table.read` returns them. Multiples are geometric means over the cases.
    """
    is_ours = rows.provider.eq(OURS[0])
    ours, theirs = (_by_condition(rows[side]) for side in (is_ours, ~is_ours))
    body = []
    for condition in CONDITIONS:
        speedup = (theirs[condition] / ours[condition]).dropna()
        moved = [times(geometric_mean(side[condition] / side[HOT])) for side in (ours, theirs)]
        won = of(int((speedup > 1).sum()), len(speedup))
        body.append([condition, times(geometric_mean(speedup)), won, times(speedup.min()), *moved])
    return markdown(["condition", "speedup", "won", "least", "auto's time / hot", "rival's time / hot"], body)


def _by_condition(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean microseconds: a line for each case, a column for each condition, NaN where it was not measured."""
    return rows.pivot(index=CASE, columns="condition", values="mean_us").reindex(columns=list(CONDITIONS))
