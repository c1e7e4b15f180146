"""conditions.csv: one row per case, algorithm and condition of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.store.csv_file import one_of
from harness.store.table import Table, runs_of, wide
from harness.store.times import HOT
from harness.sweep.records import CASE_COLUMNS

SUSTAINED, ROTATED = "sustained", "rotated"
CONDITIONS = (HOT, SUSTAINED, ROTATED)
OURS = ("cuconv", "auto")


@dataclass(frozen=True, slots=True)
class ConditionTime:
    """The microseconds of one call in each run under a condition.

    case: its key. condition: "hot" is the sweep's time, "sustained" follows seconds of the same calls, and in "rotated"
    each call uses the next of `copies` copies of the operands. sm_clock_mhz: the SM clock during the runs; None where
    it is not known.
    """

    case: Annotated[tuple[int, ...], wide(CASE_COLUMNS)]
    provider: str
    algorithm: str
    condition: Annotated[str, one_of(CONDITIONS)]
    copies: int
    runs_us: Annotated[tuple[float, ...], runs_of(HOT)]
    sm_clock_mhz: int | None = None


CONDITION_TIMES = Table("conditions", "conditions.csv", ConditionTime, "harness conditions")
