"""accuracy.csv: one row per case, algorithm and kind of magnitudes, with the errors against float64.

Files of older versions lack the columns in ABSENT, which are read as NaN.
"""

from __future__ import annotations

from harness.store.csv_file import ABSENT_GEOMETRY
from harness.store.table import Table
from harness.sweep.records import CASE_COLUMNS

TEXT_COLUMNS = ("provider", "algorithm", "magnitudes", "status", "detail")
NEW_COLUMNS = ("componentwise_error", "worst_image_error")
COLUMNS = (*CASE_COLUMNS, *TEXT_COLUMNS, "rel_l2_error", *NEW_COLUMNS)
ABSENT = ABSENT_GEOMETRY | dict.fromkeys(NEW_COLUMNS, "")
ACCURACY = Table("accuracy", "accuracy.csv", COLUMNS, TEXT_COLUMNS, "harness.experiments accuracy", ABSENT)
