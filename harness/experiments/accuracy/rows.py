"""accuracy.csv: one row per case, algorithm and kind of magnitudes, with the errors against float64.

Files of older versions lack the columns in ABSENT, which are read as NaN.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.store.csv_file import ABSENT_GEOMETRY, read_csv
from harness.sweep.records import CASE_COLUMNS

FOLDER, CSV = "accuracy", "accuracy.csv"  # in results/DEVICE
TEXT_COLUMNS = ("provider", "algorithm", "magnitudes", "status", "detail")
NEW_COLUMNS = ("componentwise_error", "worst_image_error")
COLUMNS = (*CASE_COLUMNS, *TEXT_COLUMNS, "rel_l2_error", *NEW_COLUMNS)
ABSENT = ABSENT_GEOMETRY | dict.fromkeys(NEW_COLUMNS, "")
"""The columns that files of older versions lack, with the text of their cells there."""


def read(path: Path) -> pd.DataFrame:
    """The rows of an accuracy.csv. Raises ResultsError where the file is missing or is something else."""
    remedy = "measure first with 'python -m harness.experiments accuracy' on a GPU"
    return read_csv(path, COLUMNS, text=TEXT_COLUMNS, absent=ABSENT, name=CSV, remedy=remedy)
