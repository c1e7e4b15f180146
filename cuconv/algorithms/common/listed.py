"""Kernel variants that a file lists: those that "auto" may choose of an algorithm that has more than could be shipped.

The file stands beside the CUDA source, with a column for each macro and a row for each variant. It lists the fastest
variants of many layers by the cost models; `python -m harness.tune.variants` writes it.
"""

from __future__ import annotations

import csv
from pathlib import Path

FILE_SUFFIX = ".csv"
PREPARED = "PREPARED"  # the macro of prepared weights: a variant is listed once for both


def listed(source: Path) -> list[dict[str, int]]:
    """The variants that the file of a CUDA source lists."""
    with source.with_suffix(FILE_SUFFIX).open(newline="") as file:
        return [{name: int(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def with_prepared(variants: list[dict[str, int]]) -> list[dict[str, int]]:
    """Variants, and the same for prepared weights."""
    return [*variants, *(macros | {PREPARED: 1} for macros in variants)]
