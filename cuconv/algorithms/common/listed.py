"""Kernel variants that a file lists: those that "auto" may choose of an algorithm that has more than could be shipped.

The file stands next to the CUDA source, with a column for each macro and a row for each variant. It lists the fastest
variants of many layers by the cost models; `python -m harness.tune.variants` writes it.
"""

from __future__ import annotations

import csv
from abc import abstractmethod
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from cuconv.algorithms.base import Algorithm, CallOptions, Config, Costs, Macros
from cuconv.core.elementwise import Number
from cuconv.core.problem import ConvProblem
from cuconv.device import DeviceSpec

FILE_SUFFIX = ".csv"
ANY_CHANNELS = 1.02  # a guess: the slowdown of a kernel that compares each channel's number with their count
PREPARED = "PREPARED"  # the macro of prepared weights: a variant is listed once for both

Forms = list[tuple[Number, Macros]]
"""Variants that compute the same call, each after its slowdown: its time over that of the first."""


class ListedVariants(Algorithm[Config, Costs]):
    """An algorithm whose part of the closed set a file lists."""

    @abstractmethod
    def forms(self, problem: ConvProblem, config: Config, options: CallOptions) -> Forms:
        """The variants that the main kernel of a call may be.

        The call launches the fastest that is listed, and the first where none is; `harness.tune.variants` chooses the
        list by them. options: those that `kernels` takes.
        """

    def of_row(self, macros: Macros) -> list[Macros]:
        """The kernel variants that a row of the list stands for, without those for prepared weights."""
        return [macros]

    def slowdown(self, problem: ConvProblem, device: DeviceSpec, config: Config, options: CallOptions) -> float:
        """How many times as long the fastest form that is listed takes as the first; inf where none is listed."""
        forms = self.forms(problem, config, self.fulfilled(problem, config, options))
        return least_slowdown(self.source, forms)


def listed(source: Path) -> list[Macros]:
    """The variants that the file of a CUDA source lists."""
    with source.with_suffix(FILE_SUFFIX).open(newline="") as file:
        return [{name: int(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def with_prepared(variants: list[Macros]) -> list[Macros]:
    """Variants, and the same for prepared weights."""
    return [*variants, *(macros | {PREPARED: 1} for macros in variants)]


def fastest_listed(source: Path, forms: Forms) -> Macros:
    """The fastest form that the file of a CUDA source lists; the first where it lists none."""
    return min(_listed_of(source, forms), key=lambda form: form[0], default=forms[0])[1]


def for_any_channels(macros: Macros) -> Forms:
    """The variant of some macros and, where it is for whole groups of 8 channels alone, also that for any channels."""
    other = [(ANY_CHANNELS, macros | {"WHOLE_GROUPS": 0})] if macros["WHOLE_GROUPS"] else []
    return [(1.0, macros), *other]


def least_slowdown(source: Path, forms: Forms) -> Number:
    """The slowdown of the fastest form that the file of a CUDA source lists; inf where it lists none."""
    return min((factor for factor, _ in _listed_of(source, forms)), default=inf)


def _listed_of(source: Path, forms: Forms) -> Forms:
    """The forms that the file of a CUDA source lists."""
    return [(factor, macros) for factor, macros in forms if variant_key(macros) in _rows(source, ())]


def slowdowns(source: Path, forms: Forms) -> Any:
    """The array of many configurations' slowdowns, or inf for all; forms: some of their numbers are arrays."""
    found = np.array(inf)
    for factor, macros in forms:
        varying = tuple(name for name, value in macros.items() if isinstance(value, np.ndarray))
        rows = _rows(source, varying).get(variant_key({n: v for n, v in macros.items() if n not in varying}))
        if rows:
            columns: list[Any] = [macros[name] for name in varying]
            is_listed = [row in rows for row in zip(*(column.tolist() for column in columns), strict=True)]
            found = np.minimum(found, np.where(is_listed, factor, inf))
    return found


def variant_key(macros: Macros) -> frozenset[tuple[str, int]]:
    """The macros without that of prepared weights: a variant is listed once, with and without it."""
    return frozenset(item for item in macros.items() if item[0] != PREPARED)


@cache
def _rows(source: Path, varying: tuple[str, ...]) -> dict[frozenset[tuple[str, int]], set[tuple[int | None, ...]]]:
    """The listed values of the macros that vary, by `variant_key` of the others."""
    found: dict[frozenset[tuple[str, int]], set[tuple[int | None, ...]]] = {}
    for macros in listed(source):
        row = tuple(macros.pop(name, None) for name in varying)  # None: a kernel without this macro
        found.setdefault(variant_key(macros), set()).add(row)
    return found
