"""A quick side by side: ours against the few rivals that were fastest on each case when all were measured."""

from __future__ import annotations

from pathlib import Path

from harness.results import comparisons as analysis
from harness import registry as roster
from harness.precision import FP32
from harness.results.records import CASE_COLUMNS, read

RIVALS = 3  # of each case

# For each case (batch, h, w, c, m, k, pad): the (provider, algorithm) pairs to measure.
Entrants = dict[tuple[int, ...], frozenset[tuple[str, str]]]


def fastest_rivals(csv_path: Path, device: str, precision: str = FP32) -> Entrants:
    """The three fastest of each case's rivals, cuBLAS among them, by a results folder's measurements in a precision.

    device is the folder's name under results/. Raises ResultsError where there are no measurements.
    """
    timed = analysis.timed(read(csv_path), precision)
    is_rival = roster.comparison(device).is_rival
    others = timed[[is_rival(*pair) or pair[0] == "cublas" for pair in analysis.algorithms(timed)]]
    ranked = others.sort_values("mean_us").groupby(list(CASE_COLUMNS)).head(RIVALS)
    return {case: frozenset(analysis.algorithms(rows)) for case, rows in ranked.groupby(list(CASE_COLUMNS), sort=False)}


def takes_part(entrants: Entrants, case: tuple[int, ...], provider: str, algorithm: str, device: str) -> bool:
    """Whether an algorithm is one of the case's chosen rivals, or ours."""
    ours = roster.comparison(device)
    if provider == ours.provider and not ours.is_rival(provider, algorithm):
        return True
    return (provider, algorithm) in entrants.get(case, ())
