"""The tables of what whole networks take, compared with torch: memory, and the energy of an image."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import pandas as pd

from harness.experiments.networks.rows import (
    CUCONV,
    ENERGY,
    GRAPH,
    NETWORKS,
    OK,
    TORCH_COMPILE,
    TORCH_CONTENDERS,
    TORCH_FASTEST_ENGINES,
    label,
)
from harness.experiments.networks.table import first_of_devices, least, shown
from harness.precision import FP32, TF32
from harness.store.markdown import NONE, markdown, times
from harness.sweep.comparisons import geometric_mean
from harness.sweep.provenance import provenance

MIB = 2**20
MEMORY_OF = {"torch, MiB": "torch", "compiled, MiB": TORCH_COMPILE, "cuConv, MiB": CUCONV}


def memory_section(results_of_device: Path) -> str:
    """The table of memory and where it was measured; without a networks.csv a sentence says what to run."""
    results, table = first_of_devices(results_of_device, NETWORKS, memory_table)
    if not results:
        return NETWORKS.missing(results_of_device.name)
    return f"{table}\n\nMeasured on {provenance(results, results.frame[results.frame.precision == FP32])}."


def memory_table(frame: pd.DataFrame) -> str:
    """A line for each network and batch of networks.csv: the peak memory of MEMORY_OF in FP32, in MiB.

    Empty where no network has that of torch and of cuConv.
    """
    rows = frame[(frame["mode"] == GRAPH) & (frame.precision == FP32) & (frame.status == OK)]
    body, ratios = [], []
    for _, case in rows.groupby(["network", "source", "batch"], sort=False):
        torch, _, cuconv = mib = [_peak(case, contender) for contender in MEMORY_OF.values()]
        if not isnan(cuconv / torch):
            name, cells = label(case.network.iloc[0], case.source.iloc[0]), [shown(one, 0) for one in mib]
            body.append([name, case.batch.iloc[0], *cells, times(cuconv / torch)])
            ratios.append(cuconv / torch)
    if not body:
        return ""
    body.append(["geometric mean", "", "", "", "", times(geometric_mean(ratios))])
    return markdown(["network", "batch", *MEMORY_OF, "cuConv / torch"], body)


def _peak(case: pd.DataFrame, contender: str) -> float:
    """The MiB of a contender; NaN where it was not measured."""
    return float(case[case.contender == contender].peak_memory_bytes.max()) / MIB


def energy_table(frame: pd.DataFrame) -> str:
    """A line for each network and batch, in millijoules an image, and a line of geometric means.

    frame: the rows of energy.csv. For FP32 and TF32, where there are rows, the table has the contender of least energy
    but cuConv, cuConv's converted model, and the ratio of both. Empty where no network and batch has both.
    """
    body, ratios = [], []
    precisions = [precision for precision in (FP32, TF32) if precision in set(frame.precision)]
    for _, case in frame.groupby(["network", "source", "batch"], sort=False):
        first = case.iloc[0]
        cells: list[object] = [label(first.network, first.source), first.batch]
        of_case = []
        for precision in precisions:
            who, torch_mj = least(case, (*TORCH_CONTENDERS, TORCH_FASTEST_ENGINES), precision, "mj_per_image")
            _, cuconv_mj = least(case, (CUCONV,), precision, "mj_per_image")
            of_case.append(torch_mj / cuconv_mj)
            cells += [shown(torch_mj), who or NONE, shown(cuconv_mj), times(of_case[-1])]
        if not all(map(isnan, of_case)):
            body.append(cells)
            ratios.append(of_case)
    if not body:
        return ""
    means, header = ["geometric mean", ""], ["network", "batch"]
    for precision, column in zip(map(str.upper, precisions), zip(*ratios, strict=True), strict=True):
        means += ["", "", "", times(geometric_mean(column))]
        header += [f"torch {precision}, mJ", "which is", f"cuConv {precision}, mJ", "torch / cuConv"]
    return markdown(header, [*body, means], left=(0, 3, 7)[: 1 + len(precisions)])


def energy_section(results_of_device: Path) -> str:
    """The table of energy and where it was measured; without an energy.csv a sentence says what to run."""
    results, table = first_of_devices(results_of_device, ENERGY, energy_table)
    if not results:
        return ENERGY.missing(results_of_device.name)
    return f"{table}\n\nMeasured on {provenance(results)}."
