"""The layers of the benchmark's sweeps, so that these tests stand without it; layers.csv has them, one image each."""

import csv
from pathlib import Path

from cuconv import ConvProblem

BATCHES = {"paper": (1, 8, 16, 32, 64, 128, 256)}
OTHERS = (1, 8, 32)  # batches of the other sweeps


def problems_of(sweep: str, batches: tuple[int, ...] | None = None) -> list[ConvProblem]:
    """The problems of a sweep, layer by layer, at its own batch sizes or at others."""
    with Path(__file__).with_suffix(".csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.pop("sweep") == sweep]
    layers = [{name: int(value) for name, value in row.items()} for row in rows]
    return [ConvProblem(n=n, **layer) for layer in layers for n in batches or BATCHES.get(sweep, OTHERS)]
