"""The CSV files under results/DEVICE/profile: a row for each kernel of a call.

counters.csv has Nsight Compute's counters. table_3.csv to table_5.csv have kernel times of the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.store.table import Table

SHARES = {  # columns of shares of a unit's peak, in per cent, and what a table calls the unit
    "tensor_cores": "tensor cores", "issue_slots": "issue slots", "l1_and_shared": "L1 and shared", "l2": "L2",
    "memory": "memory", "occupancy": "occupancy",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """A kernel's microseconds, and how busy it keeps each unit of the GPU, in per cent of the unit's peak."""

    case: str
    algorithm: str
    kernel: str
    us: float
    tensor_cores: float
    issue_slots: float
    l1_and_shared: float
    l2: float
    memory: float
    occupancy: float


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The mean device time of all launches of a kernel in one of `calls` calls, for a configuration of a table."""

    table: int
    configuration: str
    provider: str
    algorithm: str
    kernel: str
    calls: int
    mean_us: float


def _of_table(number: int) -> Table:
    def takes(row: Any) -> bool:
        return bool(row.table == number)

    return Table("profile", f"table_{number}.csv", KernelTime, "harness kernels", takes=takes)


COUNTERS = Table("profile", "counters.csv", KernelCounters, "harness kernels --counters")
TIMES = {number: _of_table(number) for number in (3, 4, 5)}  # by the numbers of the paper's tables
