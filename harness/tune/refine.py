"""Fitted constants of the cost models, moved until what is chosen by them is faster.

A fit meets times, whoever is fastest; a choice asks only whose predicted time is least. Here each case chooses softly,
a candidate the less likely the more its predicted time is above the least, and the constants of all algorithms are
moved together until what is lost to the best candidate is least in the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from scipy.optimize import minimize
from tqdm import tqdm

from cuconv.algorithms import ALGORITHMS
from cuconv.device import DeviceSpec
from harness.tune.fit import Row, regret, rounded

SOFTNESS = 0.06  # of the choice, in logarithms of time
NEAR = 1.5  # times the best: what is slower, and is predicted to be, has no part in the choice
MISSED = 0.02  # of errors of predictions, squared, by the weight of a fit: they count beside it up to this
PULL = 30.0  # towards the constants that were fitted, by as much as so many cases
STEPS = 20  # at most
DIFFERENCE = 1e-3  # of a constant's logarithm, for its derivative
MORE_REGRET = 0.01  # that an algorithm may have by itself, as one that is called by name
BAR = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed} elapsed, {remaining} left at most"


def refine(
    rows: list[Row], device: DeviceSpec, fitted: Mapping[str, Any], what: str = "rows", line: int = 0
) -> dict[str, Any]:
    """Constants for all algorithms that the rows are of, from those fitted to the same rows.

    An algorithm that would then choose worse among its own candidates keeps what was fitted. Progress is shown as that
    of `what`, so many lines below the cursor.
    """
    choice = _Choice(rows, device, fitted)
    with tqdm(total=STEPS, desc=f"refining {what}", bar_format=BAR, position=line) as bar:
        found = minimize(
            choice.value_and_slopes,
            choice.start,
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: bar.update(),
            options={"maxiter": STEPS},
        )
    refined = {name: rounded(type(fitted[name]), choice.of(found.x, name)) for name in choice.names}
    for name, costs in refined.items():
        mine = [row for row in rows if row.algorithm == name]
        before, after = (regret(mine, device, {name: some}).geometric for some in (fitted[name], costs))
        if after > before + MORE_REGRET:
            refined[name] = fitted[name]
    return refined


class _Choice:
    """Among the candidates of each case, by constants that are a vector of logarithms, algorithm after algorithm."""

    def __init__(self, rows: list[Row], device: DeviceSpec, fitted: Mapping[str, Any]):
        self.device, self.fitted = device, fitted
        self.names = [name for name in fitted if any(row.algorithm == name for row in rows)]
        self.places = self._side_by_side(len(astuple(fitted[name])) for name in self.names)
        self.start = np.log(np.concatenate([astuple(fitted[name]) for name in self.names]))
        self._take(rows)
        near = (self.behind < np.log(NEAR)) | (self._above_least(self.predicted(self.start)) < np.log(NEAR))
        self._take([row for row, is_near in zip(self.rows, near, strict=True) if is_near])

    def _take(self, rows: list[Row]) -> None:
        """These rows, by algorithm, and what is known of them."""
        self.by_name = {name: [row for row in rows if row.algorithm == name] for name in self.names}
        self.rows = [row for mine in self.by_name.values() for row in mine]
        self.rows_of = self._side_by_side(map(len, self.by_name.values()))
        numbers = {problem: number for number, problem in enumerate(dict.fromkeys(row.problem for row in self.rows))}
        self.case = np.array([numbers[row.problem] for row in self.rows])
        self.us = np.log([row.us for row in self.rows])
        self.behind = self._above_least(self.us)

    def _side_by_side(self, lengths: Iterable[int]) -> dict[str, slice]:
        """Where each algorithm's entries are in a vector of all."""
        ends = accumulate(lengths, initial=0)
        return {name: slice(*ends_of) for name, ends_of in zip(self.names, pairwise(ends), strict=True)}

    def _above_least(self, logarithms: np.ndarray) -> np.ndarray:
        """Of each row, above the least of its case."""
        least = np.full(self.case.max() + 1, np.inf)
        np.minimum.at(least, self.case, logarithms)
        return logarithms - least[self.case]

    def of(self, constants: np.ndarray, name: str) -> np.ndarray:
        return np.exp(constants[self.places[name]])

    def predicted_by(self, constants: np.ndarray, name: str) -> np.ndarray:
        """Logarithms of the microseconds of an algorithm's rows."""
        module, costs = ALGORITHMS[name], type(self.fitted[name])(*self.of(constants, name).tolist())
        predicted = [module.predicted_us(row.problem, self.device, row.config, costs) for row in self.by_name[name]]
        return np.log(np.array(predicted))

    def predicted(self, constants: np.ndarray) -> np.ndarray:
        return np.concatenate([self.predicted_by(constants, name) for name in self.names])

    def value(self, predicted: np.ndarray, constants: np.ndarray) -> float:
        """What is lost to the best, in logarithms, with what keeps predictions and constants where they are."""
        likely = np.exp(-self._above_least(predicted) / SOFTNESS)
        lost = np.bincount(self.case, likely * self.behind) / np.bincount(self.case, likely)
        missed = np.minimum(np.exp(-2 * self.behind) * (predicted - self.us) ** 2, MISSED)
        pull = PULL / len(lost)
        return lost.mean() + missed.mean() + pull * np.mean((constants - self.start) ** 2)

    def value_and_slopes(self, constants: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its derivatives by the constants."""
        predicted = self.predicted(constants)
        value, slopes = self.value(predicted, constants), np.zeros_like(constants)
        for name in self.names:
            for place in range(self.places[name].start, self.places[name].stop):
                moved, then = constants.copy(), predicted.copy()
                moved[place] += DIFFERENCE
                then[self.rows_of[name]] = self.predicted_by(moved, name)
                slopes[place] = (self.value(then, moved) - value) / DIFFERENCE
        return value, slopes
