"""The fastest rivals of each case by earlier measurements, so that a quick look need not measure all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness import registry
from harness.precision import FP32
from harness.results import comparisons
from harness.results.records import CASE_COLUMNS, read

RIVALS = 3  # of each case

# The (provider, algorithm) pairs to measure for each case (batch, h, w, c, m, k, pad).
Entrants = dict[tuple[int, ...], frozenset[tuple[str, str]]]


def fastest_rivals(csv_path: Path, device: str, precision: str = FP32) -> Entrants:
    """The three fastest rivals of each case, cuBLAS included, by the measurements of a file in one precision.

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

    The others are ours, and the optional contenders, which a command names if it measures them.
    """
    if registry.PROVIDERS[provider].optional:
        return True
    ours = registry.comparison(device)
    if provider == ours.provider and not ours.is_rival(provider, algorithm):
        return True
    return (provider, algorithm) in rivals
