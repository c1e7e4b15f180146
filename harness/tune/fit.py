"""Least-squares fits of the cost models to measured candidates, and the regret of the choices that they make.

The residual of a candidate is the logarithm of predicted over measured time. A candidate that is slow compared with the
best of its algorithm on its case has a smaller weight, since it is not chosen anyway.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, is_dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import CallOptions
from cuconv.core.problem import ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec
from harness.precision import FP32
from harness.sweep.comparisons import CASE, geometric_mean, problem_of
from harness.tune.candidates import RUN_COLUMNS

WEIGHT_POWER = 2  # the weight of a time is (best time of its case and algorithm / it) to this power
OUTLIER = 0.1  # residuals larger than this count linearly, not squared
PULL = 0.3  # towards the constants that the fit starts from, so that those without evidence stay where they are
MAX_EVALUATIONS = 40
HELD_OUT = 0.25  # this share of the layers is not fitted to
AGREEMENT = 0.05  # a row counts where its two fastest runs differ by no more
# Algorithms whose `estimate_us` takes many configurations; that of depthwise keeps the work of single strips.
TAKE_ARRAYS = ("tf32x3_gemm", "tf32x3_wgmma", "fp16x3_pointwise", "direct")


@dataclass(frozen=True, slots=True)
class Row:
    """A measured candidate: the device time in microseconds of a configuration on a problem."""

    problem: ConvProblem
    algorithm: str
    config: Any
    us: float


def rows_of(frame: pd.DataFrame, device: DeviceSpec, precision: str = FP32) -> tuple[list[Row], pd.DataFrame]:
    """The rows of a candidates.csv.gz of one precision, and the part of the table that they are.

    A row is left out where its algorithm does not have its configuration, and where its two fastest runs differ by more
    than AGREEMENT: something disturbed the others.
    """
    rows, known = [], []
    fastest, second, *_ = np.sort(frame[list(RUN_COLUMNS)].to_numpy(), axis=1).T
    frame = frame[second < (1 + AGREEMENT) * fastest]
    for case, group in frame.groupby(CASE, sort=False):
        problem = replace(problem_of(pd.Series(case, index=CASE)), precision=precision)
        for name, members in group.groupby("algorithm", sort=False):
            algorithm = str(name)
            configs = _configs(problem, device, algorithm)
            for index, text, us in zip(members.index, members.config, members.best_us, strict=True):
                if text in configs:
                    rows.append(Row(problem, algorithm, configs[text], us))
                    known.append(index)
    return rows, frame.loc[sorted(known)]


def _configs(problem: ConvProblem, device: DeviceSpec, algorithm: str) -> dict[str, Any]:
    """An algorithm's configurations for a problem, by how they print."""
    if algorithm not in offering(problem.precision):
        return {}
    try:
        return {str(config): config for config in ALGORITHMS[algorithm].candidates(problem, device)}
    except UnsupportedProblem:
        return {}


class Predictor:
    """The predicted times of the rows of one algorithm, in their order, as a function of its constants."""

    def __init__(self, rows: Sequence[Row], device: DeviceSpec):
        self._algorithm, self._device, self._count = ALGORITHMS[rows[0].algorithm], device, len(rows)
        by_problem: dict[ConvProblem, list[int]] = {}
        for number, row in enumerate(rows):
            by_problem.setdefault(row.problem, []).append(number)
        if self._algorithm.name in TAKE_ARRAYS:
            self._parts = [
                (problem, stacked([rows[i].config for i in numbers]), numbers)
                for problem, numbers in by_problem.items()
            ]
        else:
            self._parts = [(row.problem, row.config, [number]) for number, row in enumerate(rows)]

    def __call__(self, costs: Any) -> np.ndarray:
        """The times in microseconds."""
        times = np.empty(self._count)
        for problem, config, numbers in self._parts:
            times[numbers] = self._algorithm.predicted_us(problem, self._device, config, costs)
        return times


def stacked(configs: Sequence[Any]) -> Any:
    """Configurations as one object, whose fields are arrays of theirs, or what they have in common."""
    kind: Any = type(configs[0])
    columns: list[Any] = []
    for field in fields(kind):
        values = [getattr(config, field.name) for config in configs]
        if is_dataclass(values[0]):
            columns.append(stacked(values))
        else:
            columns.append(values[0] if len(set(values)) == 1 else np.array(values))
    return kind(*columns)


def fit(rows: list[Row], device: DeviceSpec) -> Any:
    """The constants of the one algorithm that the rows are of, by least squares from those in use."""
    algorithm = ALGORITHMS[rows[0].algorithm]
    us = np.array([row.us for row in rows])
    best = _best(rows)
    weights = np.array([(best[row.problem] / row.us) ** WEIGHT_POWER for row in rows])
    start = np.log(astuple(algorithm.costs(rows[0].problem.precision)))

    predict = Predictor(rows, device)

    def residuals(constants: np.ndarray) -> np.ndarray:
        predicted = predict(algorithm.costs_type(*np.exp(constants).tolist()))
        return np.concatenate([weights * np.log(predicted / us), PULL * (constants - start)])

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


def regret(rows: list[Row], device: DeviceSpec, costs: Mapping[str, Any], closed: bool = False) -> Regret:
    """The regret of choosing the candidate of least predicted time on each problem, among all algorithms of the rows.

    costs: the constants of each of these algorithms by its name. closed: whether the choice is among the candidates of
    the closed set, whose kernels may be less special than those measured, and so slower by a known factor.
    """
    chosen: dict[ConvProblem, tuple[float, float]] = {}
    for name in dict.fromkeys(row.algorithm for row in rows):
        mine = [row for row in rows if row.algorithm == name]
        for row, predicted in zip(mine, Predictor(mine, device)(costs[name]).tolist(), strict=True):
            slowdown = ALGORITHMS[name].slowdown(row.problem, device, row.config, CallOptions()) if closed else 1.0
            times = predicted * slowdown, row.us * slowdown
            if isfinite(slowdown):
                chosen[row.problem] = min(chosen.get(row.problem, times), times)
    best = _best(rows)
    ratios = {problem: us / best[problem] for problem, (_, us) in chosen.items()}
    if not ratios:
        return Regret(0, float("nan"), float("nan"), "")
    worst = max(ratios, key=lambda problem: ratios[problem])
    return Regret(len(ratios), geometric_mean(list(ratios.values())), ratios[worst], worst.label)
