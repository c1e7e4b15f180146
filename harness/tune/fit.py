"""Cost models fitted to measured candidates, and how far their choice is from the best of what was measured.

The fit is least squares on logarithms: an algorithm's constants are scaled until its predictions meet the times. What
is slow beside the case's best counts less, since it will not be chosen anyway.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.device import DeviceSpec
from cuconv.problem import ConvProblem, UnsupportedProblem
from harness.results.comparisons import CASE, geometric_mean, problem_of
from harness.precision import FP32

WEIGHT_POWER = 2  # a time counts by (best of its case and algorithm / it) to this power
OUTLIER = 0.1  # errors of more than this factor (in logarithms) count linearly, not squared
PULL = 0.3  # towards the constants that the fit starts from: what the times say nothing about stays where it is
STEPS = 40
HELD_OUT = 0.25  # of the layers


@dataclass(frozen=True, slots=True)
class Row:
    """A measured candidate: microseconds of device time of a configuration on a problem."""

    problem: ConvProblem
    algorithm: str
    config: Any
    us: float


def rows_of(frame: pd.DataFrame, device: DeviceSpec, precision: str = FP32) -> tuple[list[Row], int]:
    """The rows of a precision's candidates.csv whose configurations this version has, and how many it has not."""
    rows = []
    for case, group in frame.groupby(CASE, sort=False):
        problem = replace(problem_of(pd.Series(case, index=CASE)), precision=precision)
        for algorithm, members in group.groupby("algorithm", sort=False):
            configs = _configs(problem, device, algorithm)
            known = zip(members.config, members.best_us, strict=True)
            rows += [Row(problem, algorithm, configs[text], us) for text, us in known if text in configs]
    return rows, len(frame) - len(rows)


def _configs(problem: ConvProblem, device: DeviceSpec, algorithm: str) -> dict[str, Any]:
    if algorithm not in offering(problem.precision):
        return {}
    try:
        return {str(config): config for config in ALGORITHMS[algorithm].candidates(problem, device)}
    except UnsupportedProblem:
        return {}


def fit(rows: list[Row], device: DeviceSpec) -> Any:
    """The constants for the rows of one algorithm in one precision, starting from those in use."""
    module = ALGORITHMS[rows[0].algorithm]
    us = np.array([row.us for row in rows])
    best = _best(rows)
    weights = np.array([(best[row.problem] / row.us) ** WEIGHT_POWER for row in rows])
    start = np.log(astuple(module.costs(rows[0].problem.precision)))

    def errors(constants: np.ndarray) -> np.ndarray:
        costs = module.costs_type(*np.exp(constants).tolist())
        predicted = [module.predicted_us(row.problem, device, row.config, costs) for row in rows]
        return np.concatenate([weights * np.log(np.array(predicted) / us), PULL * (constants - start)])

    found = least_squares(errors, start, loss="soft_l1", f_scale=OUTLIER, max_nfev=STEPS)
    return rounded(module.costs_type, np.exp(found.x))


def rounded(kind: type, constants: np.ndarray) -> Any:
    """Costs of a kind, as they are written down."""
    return kind(*(float(f"{value:.3g}") for value in constants))


def _best(rows: list[Row]) -> dict[ConvProblem, float]:
    best: dict[ConvProblem, float] = {}
    for row in rows:
        best[row.problem] = min(row.us, best.get(row.problem, row.us))
    return best


def split(rows: list[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Rows to fit on, and rows of layers held out of the fit at every batch size."""
    layers = sorted({_layer(row.problem) for row in rows})
    random.Random(seed).shuffle(layers)
    held_out = set(layers[: round(HELD_OUT * len(layers))])
    return (
        [row for row in rows if _layer(row.problem) not in held_out],
        [row for row in rows if _layer(row.problem) in held_out],
    )


def _layer(problem: ConvProblem) -> tuple[int, ...]:
    return astuple(problem)[1:]


@dataclass(frozen=True, slots=True)
class Regret:
    """Time of what was chosen over the best that was measured, over `cases`; `at` labels the worst case."""

    cases: int
    geometric: float
    worst: float
    at: str


def regret(rows: list[Row], device: DeviceSpec, costs: Mapping[str, Any]) -> Regret:
    """How far the row of least predicted time is behind the fastest of its case, whatever their algorithms."""
    chosen: dict[ConvProblem, tuple[float, float]] = {}
    for row in rows:
        predicted = ALGORITHMS[row.algorithm].predicted_us(row.problem, device, row.config, costs[row.algorithm])
        chosen[row.problem] = min(chosen.get(row.problem, (predicted, row.us)), (predicted, row.us))
    best = _best(rows)
    behind = {problem: us / best[problem] for problem, (_, us) in chosen.items()}
    if not behind:
        return Regret(0, float("nan"), float("nan"), "")
    worst = max(behind, key=behind.get)
    return Regret(len(behind), geometric_mean(list(behind.values())), behind[worst], worst.label)
