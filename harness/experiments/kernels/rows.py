"""The CSV files under results/DEVICE/profile: a row for each kernel of a call.

counters.csv has Nsight Compute's counters. table_3.csv to table_5.csv have kernel times of the paper's tables.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.store.csv_file import read_csv
from harness.store.files import write_whole

FOLDER, COUNTERS = "profile", "counters.csv"  # in results/DEVICE
SHARES = {  # columns of shares of a unit's peak, in per cent, and what a table calls the unit
    "tensor_cores": "tensor cores", "issue_slots": "issue slots", "l1_and_shared": "L1 and shared", "l2": "L2",
    "memory": "memory", "occupancy": "occupancy",
}  # fmt: skip
COUNTER_COLUMNS = ("case", "algorithm", "kernel", "us", *SHARES)
# mean_us is the mean device time of all launches of the kernel in one of `calls` calls.
TIME_COLUMNS = ("table", "configuration", "provider", "algorithm", "kernel", "calls", "mean_us")
TEXT_COLUMNS = ("case", "configuration", "provider", "algorithm", "kernel")


def write(path: Path, rows: pd.DataFrame) -> None:
    """Replace a file of kernels by rows of COUNTER_COLUMNS or of TIME_COLUMNS."""
    write_whole(path, rows.to_csv(index=False, float_format="%.6g"))


def read(path: Path) -> pd.DataFrame:
    """The rows of a counters.csv or a table_N.csv. Raises ResultsError where it is missing or is something else."""
    columns, option = (COUNTER_COLUMNS, " --counters") if path.name == COUNTERS else (TIME_COLUMNS, "")
    remedy = f"measure first with 'python -m harness.experiments kernels{option}' on a GPU"
    return read_csv(path, columns, text=TEXT_COLUMNS, name=path.name, remedy=remedy)
