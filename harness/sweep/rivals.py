"""The algorithms of a case that are measured where not all need be: in a quick look, and separated and cold.

A quick look takes the fastest rivals by earlier measurements. Separated and cold times are for ours, and for the
fastest rivals by the hot times of the same sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from harness.contenders import registry
from harness.contenders.registry import Role
from harness.precision import FP32
from harness.sweep import comparisons
from harness.sweep.records import CASE_COLUMNS, OK, read

RIVALS = 3  # for each case, in a quick look
RIVALS_OF_OTHER_TIMES = 5  # for each case, with separated and cold times

# The (provider, algorithm) pairs to measure for each case, by its key.
Entrants = dict[tuple[int, ...], frozenset[tuple[str, str]]]


def fastest_rivals(csv_path: Path, device: str, precision: str = FP32) -> Entrants:
    """The three fastest of each case among the rivals and cuBLAS, by the measurements of a file in one precision.

    device is the name of its folder under results/. Raises ResultsError where there are no measurements.
    """
    timed = comparisons.timed(read(csv_path), precision)
    is_rival = registry.comparison(device).is_rival
    mask = [is_rival(*pair) or pair[0] == "cublas" for pair in comparisons.algorithms(timed)]
    others = timed[np.array(mask, dtype=bool)]  # an empty list would select no columns
    entrants: dict[tuple[int, ...], set[tuple[str, str]]] = {}
    for row in others.sort_values("mean_us").groupby(list(CASE_COLUMNS)).head(RIVALS).itertuples():
        case = tuple(getattr(row, column) for column in CASE_COLUMNS)
        entrants.setdefault(case, set()).add((str(row.provider), str(row.algorithm)))
    return {case: frozenset(pairs) for case, pairs in entrants.items()}


def takes_part(rivals: frozenset[tuple[str, str]], provider: str, algorithm: str, device: str) -> bool:
    """Whether an algorithm is measured on a case: a rival where it is one of the case's entrants, all others always.

    The others are ours, and the contenders that a command names if it measures them: optional ones, and one's own.
    """
    if registry.PROVIDERS[provider].optional or registry.is_own(provider):
        return True
    ours = registry.comparison(device)
    if provider == ours.provider and not ours.is_rival(provider, algorithm):
        return True
    return (provider, algorithm) in rivals


class Timed(Protocol):
    """A row of one algorithm with its status, the mean of its hot runs or None, and whether it has the other times."""

    @property
    def provider(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def mean_us(self) -> float | None: ...
    @property
    def has_every_time(self) -> bool: ...


Row = TypeVar("Row", bound=Timed)


def qualifying(rows: Sequence[Row], device: str) -> list[Row]:
    """The rows of one case and precision whose algorithms have separated and cold times too, of those that are "ok".

    These are the subjects of the comparison, the library's choice in channels_last, those compared apart from the
    rivals, and the five fastest rivals.
    """
    ours = registry.comparison(device)
    timed = sorted((row for row in rows if row.status == OK), key=lambda row: row.mean_us or 0)
    subjects = (*ours.subjects, registry.AUTO_NHWC)
    mine = [row for row in timed if row.provider == ours.provider and row.algorithm in subjects]
    beside = [row for row in timed if _is_beside(row.provider)]
    rivals = [row for row in timed if ours.is_rival(row.provider, row.algorithm)]
    return [*mine, *beside, *rivals[:RIVALS_OF_OTHER_TIMES]]


def _is_beside(provider: str) -> bool:
    """Whether a provider that every sweep measures is neither ours nor a rival."""
    found = registry.PROVIDERS[provider]
    return found.role in (Role.PREPARED, Role.BESIDE) and not found.optional


def lacking_times(rows: Iterable[Timed], device: str) -> set[tuple[str, str]]:
    """The algorithms of one case and precision that qualify for separated and cold times and lack one of them.

    A case that was interrupted has such rows: they are not done.
    """
    return {(row.provider, row.algorithm) for row in qualifying(list(rows), device) if not row.has_every_time}
