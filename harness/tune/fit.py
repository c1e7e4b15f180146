"""Least-squares fits of the cost models to measured candidates, and the regret of the choices that they make.

The residual of a candidate is the logarithm of predicted over measured time. A candidate that is slow beside the best
of its case has a smaller weight, since it is not chosen anyway.
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
from harness.precision import FP32
from harness.results.comparisons import CASE, geometric_mean, problem_of

WEIGHT_POWER = 2  # the weight of a time is (best time of its case and algorithm / it) to this power
OUTLIER = 0.1  # residuals larger than this count linearly, not squared
PULL = 0.3  # towards the constants that the fit starts from, so that those without evidence stay where they are
MAX_EVALUATIONS = 40
HELD_OUT = 0.25  # of the layers


@dataclass(frozen=True, slots=True)
class Row:
    """A measured candidate: the device time in microseconds of a configuration on a problem."""

    problem: ConvProblem
    algorithm: str
    config: Any
    us: float


def rows_of(frame: pd.DataFrame, device: DeviceSpec, precision: str = FP32) -> tuple[list[Row], int]:
    """The rows of a candidates.csv of one precision, and the number of rows left out.

    A row is left out where its algorithm does not have its configuration.
    """
    rows = []
    for case, group in frame.groupby(CASE, sort=False):
        problem = replace(problem_of(pd.Series(case, index=CASE)), precision=precision)
        for name, members in group.groupby("algorithm", sort=False):
            algorithm = str(name)
            configs = _configs(problem, device, algorithm)
            known = zip(members.config, members.best_us, strict=True)
            rows += [Row(problem, algorithm, configs[text], us) for text, us in known if text in configs]
    return rows, len(frame) - len(rows)


def _configs(problem: ConvProblem, device: DeviceSpec, algorithm: str) -> dict[str, Any]:
    """An algorithm's configurations for a problem, by how they print."""
    if algorithm not in offering(problem.precision):
        return {}
    try:
        return {str(config): config for config in ALGORITHMS[algorithm].candidates(problem, device)}
    except UnsupportedProblem:
        return {}


def fit(rows: list[Row], device: DeviceSpec) -> Any:
    """The constants of the one algorithm that the rows are of, by least squares from those in use."""
    algorithm = ALGORITHMS[rows[0].algorithm]
    us = np.array([row.us for row in rows])
    best = _best(rows)
    weights = np.array([(best[row.problem] / row.us) ** WEIGHT_POWER for row in rows])
    start = np.log(astuple(algorithm.costs(rows[0].problem.precision)))

    def residuals(constants: np.ndarray) -> np.ndarray:
        costs = algorithm.costs_type(*np.exp(constants).tolist())
        predicted = [algorithm.predicted_us(row.problem, device, row.config, costs) for row in rows]
        return np.concatenate([weights * np.log(np.array(predicted) / us), PULL * (constants - start)])

    found = least_squares(residuals, start, loss="soft_l1", f_scale=OUTLIER, max_nfev=MAX_EVALUATIONS)
    return rounded(algorithm.costs_type, np.exp(found.x))


def rounded(costs_type: type, constants: np.ndarray) -> Any:
    """The constants of a cost model, rounded to the three digits that its file has."""
    return costs_type(*(float(f"{value:.3g}") for value in constants))


def _best(rows: list[Row]) -> dict[ConvProblem, float]:
    """The least time in microseconds measured on each problem."""
    best: dict[ConvProblem, float] = {}
    for row in rows:
        best[row.problem] = min(row.us, best.get(row.problem, row.us))
    return best


def hold_out(rows: list[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """The rows to fit to, and those of a quarter of the layers, which are held out at every batch size."""
    layers = sorted({_layer(row.problem) for row in rows})
    random.Random(seed).shuffle(layers)
    held_out = set(layers[: round(HELD_OUT * len(layers))])
    return (
        [row for row in rows if _layer(row.problem) not in held_out],
        [row for row in rows if _layer(row.problem) in held_out],
    )


def _layer(problem: ConvProblem) -> tuple[Any, ...]:
    """The problem without its batch size."""
    return astuple(problem)[1:]


@dataclass(frozen=True, slots=True)
class Regret:
    """The time of the chosen candidate over that of the best measured: geometric mean and worst of `cases` cases.

    `at` labels the worst case.
    """

    cases: int
    geometric: float
    worst: float
    at: str


def regret(rows: list[Row], device: DeviceSpec, costs: Mapping[str, Any]) -> Regret:
    """The regret of choosing the candidate of least predicted time on each problem, among all algorithms of the rows.

    costs: the constants of each of these algorithms by its name.
    """
    chosen: dict[ConvProblem, tuple[float, float]] = {}
    for row in rows:
        predicted = ALGORITHMS[row.algorithm].predicted_us(row.problem, device, row.config, costs[row.algorithm])
        chosen[row.problem] = min(chosen.get(row.problem, (predicted, row.us)), (predicted, row.us))
    best = _best(rows)
    ratios = {problem: us / best[problem] for problem, (_, us) in chosen.items()}
    if not ratios:
        return Regret(0, float("nan"), float("nan"), "")
    worst = max(ratios, key=lambda problem: ratios[problem])
    return Regret(len(ratios), geometric_mean(list(ratios.values())), ratios[worst], worst.label)
