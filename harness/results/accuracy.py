"""accuracy.csv: one row per case, algorithm and kind of magnitudes, with the error against float64."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.results.csv_file import read_csv
from harness.results.records import CASE_COLUMNS

FOLDER, CSV = "accuracy", "accuracy.csv"  # in results/DEVICE
TEXT_COLUMNS = ("provider", "algorithm", "magnitudes", "status", "detail")
COLUMNS = (*CASE_COLUMNS, *TEXT_COLUMNS, "rel_l2_error")


def read(path: Path) -> pd.DataFrame:
    """The rows of an accuracy.csv. Raises ResultsError where the file is missing or is something else."""
    remedy = "measure first with 'python -m harness.measure.accuracy' on a GPU"
    return read_csv(path, COLUMNS, text=TEXT_COLUMNS, name=CSV, remedy=remedy)
