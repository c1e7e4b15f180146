"""The tables of kernels: how busy they keep the GPU's units, and the paper's tables 3 to 5."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.contenders.registry import shown
from harness.experiments.kernels.rows import COUNTERS, SHARES
from harness.store.markdown import markdown

# Labels HW-N-K-M-C of the paper's tables, by table and configuration.
TABLES = {
    3: {"A": "7-1-1-256-832", "B": "14-1-1-1024-256", "C": "27-1-1-256-64"},
    4: {"A": "7-1-3-384-192", "B": "13-1-3-384-384"},
    5: {"A": "7-1-5-128-48", "B": "7-8-5-128-48"},
}


def counters_of(device: Path, algorithm: str) -> str:
    """The counters of an algorithm's kernels from the counters.csv of results/DEVICE, or a sentence where it has none.

    Raises ResultsError where the file is something else.
    """
    rows = COUNTERS.find(device)
    if rows is None:
        return COUNTERS.missing(device.name)
    rows, path = rows[rows.algorithm == algorithm], f"{device.name}/{COUNTERS.folder}/{COUNTERS.name}"
    return counters_table(rows) if len(rows) else f"No case of {path} is of {algorithm}."


def counters_table(rows: pd.DataFrame) -> str:
    """A line for each kernel: its microseconds, and how busy it keeps each unit, in per cent of the unit's peak."""
    header = ["HW-N-K-M-C", "kernel", "us", *(f"{unit}, %" for unit in SHARES.values())]
    kernels = zip(rows.case, rows.kernel, rows.us, *(rows[share] for share in SHARES), strict=True)
    body = [[case, kernel, f"{us:.1f}", *(f"{share:.0f}" for share in shares)] for case, kernel, us, *shares in kernels]
    return markdown(header, body, left=(0, 1))


def times_table(rows: pd.DataFrame) -> str:
    """A table in the paper's shape: a line for each kernel, a total for each algorithm, the smallest total bold.

    rows: those of one table_N.csv, as `Table.read` returns them.
    """
    table = int(rows.table.iloc[0])
    columns = list(TABLES[table])
    fastest = rows.groupby(["provider", "algorithm", "configuration"]).mean_us.sum().groupby("configuration").min()
    body = []
    for key, group in rows.groupby(["provider", "algorithm"], sort=False):
        algorithm = shown(*map(str, key))
        times = group.pivot(index="kernel", columns="configuration", values="mean_us").reindex(columns=columns)
        for kernel in dict.fromkeys(group.kernel):
            body.append([algorithm, f"`{kernel}`", *map(_us, times.loc[kernel])])
        total = times.sum(min_count=1)
        totals = [
            f"**{_us(total[name])}**" if total[name] == fastest.get(name) else _us(total[name]) for name in columns
        ]
        body.append([algorithm, "*Total*", *totals])
    header = ["algorithm", "kernel", *(f"{name}: {label}" for name, label in TABLES[table].items())]
    return f"The paper's table {table}: device time in us.\n\n{markdown(header, body, left=(0, 1))}"


def _us(us: float) -> str:
    return "" if pd.isna(us) else f"{us:.2f}"
