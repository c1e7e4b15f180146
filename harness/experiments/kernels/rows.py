"""The CSV files under results/DEVICE/profile: a row for each kernel of a call.

counters.csv has Nsight Compute's counters. table_3.csv to table_5.csv have kernel times of the paper's tables.
"""

from __future__ import annotations

from harness.store.table import Table

SHARES = {  # columns of shares of a unit's peak, in per cent, and what a table calls the unit
    "tensor_cores": "tensor cores", "issue_slots": "issue slots", "l1_and_shared": "L1 and shared", "l2": "L2",
    "memory": "memory", "occupancy": "occupancy",
}  # fmt: skip
COUNTER_COLUMNS = ("case", "algorithm", "kernel", "us", *SHARES)
# mean_us is the mean device time of all launches of the kernel in one of `calls` calls.
TIME_COLUMNS = ("table", "configuration", "provider", "algorithm", "kernel", "calls", "mean_us")
_TEXT = ("case", "configuration", "provider", "algorithm", "kernel")
COUNTERS = Table("profile", "counters.csv", COUNTER_COLUMNS, _TEXT, "harness.experiments kernels --counters")
# The kernel times of the paper's tables, by their numbers.
TIMES = {
    number: Table("profile", f"table_{number}.csv", TIME_COLUMNS, _TEXT, "harness.experiments kernels")
    for number in (3, 4, 5)
}
