"""Every GPU that was measured, in one table: a line for each sweep, and one for whole networks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.experiments.networks.rows import NETWORKS as NETWORKS_TABLE
from harness.experiments.networks.table import TORCH, beside, paper_results
from harness.report.speedups import mean_and_wins
from harness.store.markdown import NONE, markdown, times
from harness.store.times import TIMES
from harness.sweep.comparisons import Results, full_precision, geometric_mean, sweeps_of
from harness.sweep.provenance import model, provenance

NETWORKS = NETWORKS_TABLE.folder


def reference(found: Sequence[Results]) -> Results:
    """The results that the pages are about: of the device with the most sweeps, or of equals with the most rows."""
    return max(found, key=lambda results: (len(sweeps_of(results.folder.parent)), len(results.frame)))


def devices_table(found: Sequence[Results], sweeps: Sequence[str]) -> str:
    """A line for each of the named sweeps, and one for whole networks, in FP32; each GPU and way to time is a column.

    A cell has the geometric mean of the speedups, over the best cuDNN or over the fastest of torch, and the cases won.
    Sentences below say with which versions and when each GPU measured.
    """
    lines: dict[str, dict[str, list[str]]] = {name: {} for name in (*sweeps, NETWORKS)}
    models: dict[str, str] = {}  # the columns: the model of each GPU
    measured: dict[str, dict[str, list[str]]] = {}  # the sweeps of a GPU by versions and dates
    for results in found:
        for sweep in filter(None, map(results.beside, sweeps)):
            if not sweep.of_subject().empty:
                gpu = _note(measured, sweep, full_precision(sweep.frame))
                models[gpu] = model(sweep)
                lines[sweep.sweep][gpu] = _speedups(sweep)
        if (whole := paper_results(results.folder.parent)) and (cases := beside(whole.frame, TORCH)):
            won = sum(case.speedup > 1 for case in cases)
            mean = times(geometric_mean(case.speedup for case in cases))
            gpu = _note(measured, whole, whole.frame)
            models[gpu] = model(whole)
            lines[NETWORKS][gpu] = [f"{mean}, {won}/{len(cases)}", NONE, NONE]
    body = [
        [name, *(cell for gpu in measured for cell in of_gpu.get(gpu, [NONE] * len(TIMES)))]
        for name, of_gpu in lines.items()
        if of_gpu
    ]
    header = ["sweep", *(f"{gpu}, {time}" for gpu in models.values() for time in TIMES)]
    told = [f"{gpu}: {'; '.join(_where(*one) for one in of_gpu.items())}." for gpu, of_gpu in measured.items()]
    return "\n\n".join([markdown(header, body), *told])


def _note(measured: dict[str, dict[str, list[str]]], results: Results, rows: pd.DataFrame) -> str:
    """Enter a sweep under its GPU, versions and dates, and return the GPU."""
    gpu, _, where = provenance(results, rows).partition(", ")
    measured.setdefault(gpu, {}).setdefault(where, []).append(results.sweep)
    return gpu


def _where(versions: str, sweeps: Sequence[str]) -> str:
    """Sweeps, and the versions and dates that they were measured with."""
    return f"{', '.join(sweeps)} with {versions}" if versions else ", ".join(sweeps)


def _speedups(results: Results) -> list[str]:
    """The cells of a sweep, one for each of TIMES."""
    cells = {one.time: mean_and_wins(one.of_subject()) for one in results.every_time}
    return [cells.get(time, NONE) for time in TIMES]
