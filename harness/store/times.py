"""The three times of a row of measurements.csv, and a file's rows as one of them shows them.

hot: calls follow one another. separated: a small kernel of other code stands between two calls. cold: L2 is flushed
before each call. docs/timing.md tells how each is taken.
"""

from __future__ import annotations

import pandas as pd

MAX_RUNS = 9
HOT, SEPARATED, COLD = TIMES = ("hot", "separated", "cold")
# What a reader of a table or a figure must know of a time.
NOTES = {
    HOT: "calls one after another",
    SEPARATED: "a small kernel of other code between two calls",
    COLD: "L2 flushed before each call",
}


def run_columns(time: str) -> tuple[str, ...]:
    """The columns of a time's runs, in microseconds, such as "run_1_us" and "cold_run_1_us"."""
    start = "" if time == HOT else f"{time}_"
    return tuple(f"{start}run_{i}_us" for i in range(1, MAX_RUNS + 1))


def mean_column(time: str) -> str:
    """The column of the mean of a time's runs: "mean_us", "separated_us" or "cold_us"."""
    return "mean_us" if time == HOT else f"{time}_us"


def at_time(frame: pd.DataFrame, time: str) -> pd.DataFrame:
    """Rows of measurements.csv with a time in the columns of hot, mean_us and run_1_us to run_9_us.

    A row that was not measured so has no time there.
    """
    if time == HOT:
        return frame
    columns = {mean_column(HOT): frame[mean_column(time)]}
    for hot, other in zip(run_columns(HOT), run_columns(time), strict=True):
        columns[hot] = frame[other]
    return frame.assign(**columns)
