"""The three times of a row of measurements.csv, and a file's rows as one of them shows them.

hot: calls follow one another. separated: a small kernel of other code stands between two calls. cold: L2 is flushed
before each call. docs/timing.md tells how each is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

RUNS = 9  # as in the paper; a measurement may ask for another number
MOST_RUNS = 99
HOT, SEPARATED, COLD = TIMES = ("hot", "separated", "cold")
# What a reader of a table or a figure must know of a time.
NOTES = {
    HOT: "calls one after another",
    SEPARATED: "a small kernel of other code between two calls",
    COLD: "L2 flushed before each call",
}


def run_columns(time: str, runs: int = RUNS) -> tuple[str, ...]:
    """The columns of a number of runs of a time, in microseconds, such as "run_1_us" and "cold_run_1_us"."""
    start = "" if time == HOT else f"{time}_"
    return tuple(f"{start}run_{i}_us" for i in range(1, runs + 1))


def runs_in(columns: Iterable[str]) -> int:
    """The number of runs that a file with these columns has room for."""
    return sum(re.fullmatch(r"run_[0-9]+_us", column) is not None for column in columns)


def hot_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """The hot runs of each row, or those of a time that `at_time` put in their place; absent ones are NaN."""
    return frame[list(run_columns(HOT, runs_in(frame.columns)))]


def mean_column(time: str) -> str:
    """The column of the mean of a time's runs: "mean_us", "separated_us" or "cold_us"."""
    return "mean_us" if time == HOT else f"{time}_us"


def at_time(frame: pd.DataFrame, time: str) -> pd.DataFrame:
    """Rows of measurements.csv with a time in the columns of hot, mean_us and those of the runs.

    A row that was not measured so has no time there.
    """
    if time == HOT:
        return frame
    columns = {mean_column(HOT): frame[mean_column(time)]}
    runs = runs_in(frame.columns)
    for hot, other in zip(run_columns(HOT, runs), run_columns(time, runs), strict=True):
        columns[hot] = frame[other]
    return frame.assign(**columns)
