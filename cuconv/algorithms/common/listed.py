"""Kernel variants that a file lists: those that "auto" may choose of an algorithm that has more than could be shipped.

The file stands beside the CUDA source, with a column for each macro and a row for each variant. It lists the fastest
variants of many layers by the cost models; `python -m harness.tune.variants` writes it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from itertools import product
from pathlib import Path

FILE_SUFFIX = ".csv"

# Macros that follow from the options of a call, and their values; a variant is listed once for all of them.
OPTIONS = {"RESIDUAL": (0, 1), "PREPARED": (0, 1)}


def listed(source: Path, options: Iterable[str] = ()) -> list[dict[str, int]]:
    """The variants that the file of a CUDA source lists, each with every setting of the given options.

    options: keys of OPTIONS. PREPARED is a macro only where it is 1.
    """
    with source.with_suffix(FILE_SUFFIX).open(newline="") as file:
        rows = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
    names = list(options)
    settings = [dict(zip(names, values, strict=True)) for values in product(*(OPTIONS[name] for name in names))]
    return [row | {name: value for name, value in one.items() if value or name != "PREPARED"}
            for row in rows for one in settings]  # fmt: skip
