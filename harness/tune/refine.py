"""Cost models refined for the choice that they make: minimal expected regret of a softmax choice.

Least squares fits times, but choosing needs only an order. So each case here chooses a candidate at random, with the
probability of a softmax over the logarithms of the predicted times. L-BFGS moves the constants of all algorithms
together until the mean of the expected regrets over all cases is least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import astuple
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from scipy.optimize import minimize

from cuconv.device import DeviceSpec
from harness import progress
from harness.tune.fit import Predictor, Row, regret, rounded

TEMPERATURE = 0.06  # the softmax's, in logarithms of time; a lower one generalises worse
NEAR = 1.5  # times the best; candidates both measured and predicted slower take no part in the choice
MAX_MISS = 0.02  # the most that the squared residual of a least-squares fit adds to the regret
PULL = 30.0  # weight of the pull towards the fitted constants, in cases
MAX_STEPS = 20
DIFFERENCE = 1e-3  # the step of a constant's logarithm, for its finite difference
MAX_OWN_REGRET = 0.01  # by which an algorithm's regret among its own candidates may grow: users call it by name too


def refine(
    rows: list[Row], device: DeviceSpec, fitted: Mapping[str, Any], shows_progress: bool = False
) -> dict[str, Any]:
    """The refined constants of all algorithms that the rows are of.

    fitted: the constants to start from, fitted to the same rows, by algorithm. An algorithm whose choice among its own
    candidates would become worse by more than MAX_OWN_REGRET keeps its fitted constants.
    """
    choice = _SoftmaxChoice(rows, device, fitted)
    with progress.counted(range(MAX_STEPS), "refining, at most") if shows_progress else nullcontext() as bar:
        found = minimize(
            choice.loss_and_gradient,
            choice.start,
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: bar.update() if bar is not None else None,
            options={"maxiter": MAX_STEPS},
        )
    refined = {name: rounded(type(fitted[name]), choice.constants_of(found.x, name)) for name in choice.names}
    for name, costs in refined.items():
        mine = [row for row in rows if row.algorithm == name]
        before, after = (regret(mine, device, {name: some}).geometric for some in (fitted[name], costs))
        if after > before + MAX_OWN_REGRET:
            refined[name] = fitted[name]
    return refined


class _SoftmaxChoice:
    """The loss to be minimised, as a function of the logarithms of all constants, algorithm after algorithm.

    Arrays over rows are in the order of `rows`, which is algorithm after algorithm too. All times are logarithms.
    """

    def __init__(self, rows: list[Row], device: DeviceSpec, fitted: Mapping[str, Any]):
        self.device, self.fitted = device, fitted
        self.names = [name for name in fitted if any(row.algorithm == name for row in rows)]
        self.constants_at = self._slices(len(astuple(fitted[name])) for name in self.names)
        self.start = np.log(np.concatenate([astuple(fitted[name]) for name in self.names]))
        self._take(rows)
        near = (self.regret < np.log(NEAR)) | (self._above_least(self.predict(self.start)) < np.log(NEAR))
        self._take([row for row, is_near in zip(self.rows, near, strict=True) if is_near])

    def _take(self, rows: list[Row]) -> None:
        """Set the rows, and what is known of each: its case's number, its measured time and its regret."""
        self.by_name = {name: [row for row in rows if row.algorithm == name] for name in self.names}
        self.predictors = {name: Predictor(mine, self.device) for name, mine in self.by_name.items() if mine}
        self.rows = [row for mine in self.by_name.values() for row in mine]
        self.rows_at = self._slices(map(len, self.by_name.values()))
        numbers = {problem: number for number, problem in enumerate(dict.fromkeys(row.problem for row in self.rows))}
        self.case = np.array([numbers[row.problem] for row in self.rows])
        self.measured = np.log([row.us for row in self.rows])
        self.regret = self._above_least(self.measured)

    def _slices(self, lengths: Iterable[int]) -> dict[str, slice]:
        """The place of each algorithm's entries in an array of all."""
        ends = accumulate(lengths, initial=0)
        return {name: slice(*ends_of) for name, ends_of in zip(self.names, pairwise(ends), strict=True)}

    def _above_least(self, times: np.ndarray) -> np.ndarray:
        """Each row's time less the least time of its case."""
        least = np.full(self.case.max() + 1, np.inf)
        np.minimum.at(least, self.case, times)
        return times - least[self.case]

    def constants_of(self, constants: np.ndarray, name: str) -> np.ndarray:
        """The constants of one algorithm, not as logarithms."""
        return np.exp(constants[self.constants_at[name]])

    def predict_one(self, constants: np.ndarray, name: str) -> np.ndarray:
        """The predicted times of one algorithm's rows."""
        if name not in self.predictors:
            return np.empty(0)
        costs = type(self.fitted[name])(*self.constants_of(constants, name).tolist())
        return np.log(self.predictors[name](costs))

    def predict(self, constants: np.ndarray) -> np.ndarray:
        """The predicted times of all rows."""
        return np.concatenate([self.predict_one(constants, name) for name in self.names])

    def loss(self, predicted: np.ndarray, constants: np.ndarray) -> float:
        """The mean expected regret, and what keeps predictions near the times and constants near the fitted ones."""
        chance = np.exp(-self._above_least(predicted) / TEMPERATURE)  # not normalised: bincount sums it by case
        expected = np.bincount(self.case, chance * self.regret) / np.bincount(self.case, chance)
        missed = np.minimum(np.exp(-2 * self.regret) * (predicted - self.measured) ** 2, MAX_MISS)
        pull = PULL / len(expected)
        return expected.mean() + missed.mean() + pull * np.mean((constants - self.start) ** 2)

    def loss_and_gradient(self, constants: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its derivatives by the constants, as finite differences.

        A constant changes the predictions of its own algorithm alone, so only these are made again.
        """
        predicted = self.predict(constants)
        loss, gradient = self.loss(predicted, constants), np.zeros_like(constants)
        for name in self.names:
            for place in range(self.constants_at[name].start, self.constants_at[name].stop):
                moved, then = constants.copy(), predicted.copy()
                moved[place] += DIFFERENCE
                then[self.rows_at[name]] = self.predict_one(moved, name)
                gradient[place] = (self.loss(then, moved) - loss) / DIFFERENCE
        return loss, gradient
