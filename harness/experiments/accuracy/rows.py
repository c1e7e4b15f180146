"""accuracy.csv: one row per case, algorithm and kind of magnitudes, with the errors against float64.

Files of older versions lack the columns in ABSENT, which are read as NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.store.csv_file import ABSENT_GEOMETRY
from harness.store.table import Table, wide
from harness.sweep.records import CASE_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The result of one algorithm on one case's data; an error exists only where status is "ok". case: its key."""

    case: Annotated[tuple[int, ...], wide(CASE_COLUMNS)]
    provider: str
    algorithm: str
    magnitudes: str
    status: str
    detail: str = ""
    rel_l2_error: float | None = None
    componentwise_error: float | None = None
    worst_image_error: float | None = None


NEW_COLUMNS = ("componentwise_error", "worst_image_error")
ABSENT = ABSENT_GEOMETRY | dict.fromkeys(NEW_COLUMNS, "")
ACCURACY = Table("accuracy", "accuracy.csv", Accuracy, "harness accuracy", ABSENT)
