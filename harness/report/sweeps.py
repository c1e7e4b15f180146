"""Every sweep of a device in one table: a line for each sweep and precision, a column for each way to time."""

from __future__ import annotations

import pandas as pd

from harness.precision import MEASURED
from harness.report.half import in_one_precision
from harness.report.speedups import mean_and_wins
from harness.store.markdown import NONE, markdown, times
from harness.store.times import HOT, TIMES
from harness.sweep.comparisons import NEARLY_ALL, Results, sweeps_of, timed
from harness.sweep.provenance import provenance


def sweeps_table(results: Results) -> str:
    """The first subject over the fastest rival in the same precision, in each sweep of the device.

    A cell has the geometric mean of the speedups over the cases that both computed, and the won ones of these cases.
    Separated and cold times are left out where less than NEARLY_ALL of the cases have them. The subject in TF32 is
    auto_nhwc. Sentences say with which versions and when the sweeps were measured. results: hot, of one sweep of the
    device.
    """
    lines = []
    measured: dict[str, dict[str, list[str]]] = {}  # the precisions of each sweep by versions and dates
    for name in (folder.name for folder in sweeps_of(results.folder.parent)):
        sweep = results.beside(name)
        assert sweep is not None, f"{name} is a folder of the device"
        at_others = [sweep.at(time) for time in TIMES if time != HOT]
        for precision in MEASURED:
            if (rows := timed(sweep.frame, precision)).empty:
                continue
            hot, *others = (_speedups(each, precision) for each in (sweep, *at_others))
            if not hot.empty:
                cells = [mean_and_wins(each) if len(each) >= NEARLY_ALL * len(hot) else NONE for each in (hot, *others)]
                lines.append([name, precision.upper(), *cells, times(float(hot.speedup.min()))])
                measured.setdefault(provenance(sweep, rows), {}).setdefault(name, []).append(precision.upper())
    table = markdown(["sweep", "precision", *TIMES, "least speedup, hot"], lines, left=(0, 1))
    return "\n\n".join([table, *(f"{where}: {_named(names)}." for where, names in measured.items())])


def _speedups(results: Results, precision: str) -> pd.DataFrame:
    """The rows of `compare` of the first subject in one precision that have a speedup."""
    return in_one_precision(results, precision)[1].dropna(subset="speedup")


def _named(sweeps: dict[str, list[str]]) -> str:
    """Sweeps with their precisions, such as "random (FP32, FP16), vae (FP32)"."""
    return ", ".join(f"{name} ({', '.join(precisions)})" for name, precisions in sweeps.items())
