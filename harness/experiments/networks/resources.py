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
    TORCH_CONTENDERS,
    TORCH_FASTEST_ENGINES,
    label,
)
from harness.experiments.networks.table import first_of_devices, grid, least
from harness.precision import FP32, TF32
from harness.sweep.provenance import provenance

MIB = 2**20


def memory_section(results_of_device: Path) -> str:
    """The table of memory and where it was measured; without a networks.csv a sentence says what to run."""
    results, table = first_of_devices(results_of_device, NETWORKS, memory_table)
    if not results:
        return NETWORKS.missing(results_of_device.name)
    return f"{table}\n\nMeasured on {provenance(results, results.frame[results.frame.precision == FP32])}."


def memory_table(frame: pd.DataFrame) -> str:
    """The `grid` of the peak memory of cuConv and of torch in FP32 in networks.csv, in MiB."""
    rows = frame[(frame["mode"] == GRAPH) & (frame.precision == FP32) & (frame.status == OK)]
    cases = []
    for _, case in rows.groupby(["network", "source", "batch"], sort=False):
        cuconv, torch = (_peak(case, contender) for contender in (CUCONV, "torch"))
        if not isnan(cuconv / torch):
            cases.append((label(case.network.iloc[0], case.source.iloc[0]), int(case.batch.iloc[0]), cuconv, torch))
    return grid(cases, won=False)


def _peak(case: pd.DataFrame, contender: str) -> float:
    """The MiB of a contender; NaN where it was not measured."""
    return float(case[case.contender == contender].peak_memory_bytes.max()) / MIB


def energy_table(frame: pd.DataFrame) -> str:
    """The `grid` of torch's contender of least energy and cuConv's converted model, for each precision that has both.

    frame: the rows of energy.csv, in millijoules an image.
    """
    tables = {precision.upper(): _energy_grid(frame, precision) for precision in (FP32, TF32)}
    return "\n\n".join(f"In {precision}:\n\n{table}" for precision, table in tables.items() if table)


def _energy_grid(frame: pd.DataFrame, precision: str) -> str:
    cases = []
    for _, case in frame.groupby(["network", "source", "batch"], sort=False):
        first = case.iloc[0]
        _, torch_mj = least(case, (*TORCH_CONTENDERS, TORCH_FASTEST_ENGINES), precision, "mj_per_image")
        _, cuconv_mj = least(case, (CUCONV,), precision, "mj_per_image")
        if not isnan(torch_mj / cuconv_mj):
            cases.append((label(first.network, first.source), int(first.batch), torch_mj, cuconv_mj))
    return grid(cases, digits=1)


def energy_section(results_of_device: Path) -> str:
    """The table of energy and where it was measured; without an energy.csv a sentence says what to run."""
    results, table = first_of_devices(results_of_device, ENERGY, energy_table)
    if not results:
        return ENERGY.missing(results_of_device.name)
    return f"{table}\n\nMeasured on {provenance(results)}."
