"""bandwidth.csv: one row per size of a copy on the device, with the time of the faster of two ways to copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.errors import ResultsError
from harness.store.csv_file import read_csv
from harness.store.times import HOT, run_columns

FOLDER, CSV = "bandwidth", "bandwidth.csv"  # in results/DEVICE
COLUMNS = ("bytes", "way", *run_columns(HOT), "mean_us")


def read(path: Path) -> pd.DataFrame:
    """The rows of a bandwidth.csv by size. Raises ResultsError where the file is missing or is something else."""
    remedy = "measure first with 'python -m harness.experiments copies' on a GPU"
    copies = read_csv(path, COLUMNS, text=["way"], name=CSV, remedy=remedy)
    if not len(copies) or not (copies[["bytes", "mean_us"]] > 0).to_numpy().all():
        raise ResultsError(f"{path} must have rows, with bytes and mean_us above 0: restore it or measure again")
    return copies.sort_values("bytes", ignore_index=True)


def copy_us(copies: pd.DataFrame, moved: Sequence[int]) -> np.ndarray:
    """Microseconds of copies that read and write so many bytes together, as an array; copies: as `read` returns them.

    Sizes that were not measured lie on straight lines between those that were, logarithm over logarithm. Sizes below
    the smallest or above the largest have NaN.
    """
    sizes, times = np.log(copies.bytes.to_numpy(float)), np.log(copies.mean_us.to_numpy(float))
    return np.exp(np.interp(np.log(np.asarray(moved, dtype=float)), sizes, times, left=np.nan, right=np.nan))
