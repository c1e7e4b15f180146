"""Many launch configurations as one object: element i of each of its NumPy arrays belongs to configuration i.

A new size of a layer is planned while its caller waits. Arrays take a few microseconds for what a loop over
configurations takes a millisecond. `cuconv.numbers` has the arithmetic that works on both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from cuconv.algorithms.base import Algorithm, Config, Costs
from cuconv.device import DeviceSpec
from cuconv.problem import ConvProblem

Some = TypeVar("Some")


def chosen(many: Some, index: Any) -> Some:
    """One of many configurations, with plain numbers."""
    kind: Any = type(many)
    taken = []
    for name in _field_names(kind):
        value = getattr(many, name)
        if isinstance(value, np.ndarray):
            value = value.item(index)
        elif is_dataclass(value):
            value = chosen(value, index)
        taken.append(value)
    found: Some = kind(*taken)
    return found


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


class ManyConfigurations(Algorithm[Config, Costs]):
    """An algorithm that makes and weighs its configurations as arrays."""

    @abstractmethod
    def many(self, problem: ConvProblem, device: DeviceSpec) -> tuple[Config, Any]:
        """One configuration object with array fields, and an array that says which of its configurations can run.

        Raises UnsupportedProblem where none can.
        """

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        many, possible = self.many(problem, device)
        return [chosen(many, index) for index in np.flatnonzero(possible)]

    def timed(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> tuple[Config, Any, Any]:
        """The two results of `many`, and an array of predicted times in microseconds."""
        many, possible = self.many(problem, device)
        predict = self.prepared_us if prepared else self.estimate_us
        return many, possible, predict(problem, device, many, self.costs(problem.precision))

    def weighed(self, problem: ConvProblem, device: DeviceSpec, prepared: bool = False) -> tuple[Config, float]:
        """The candidate of least predicted time, and that time; raises UnsupportedProblem where there is no candidate.

        prepared: for weights that are packed.
        """
        many, possible, times = self.timed(problem, device, prepared)
        index = np.where(possible, times, np.inf).argmin()
        return chosen(many, index), times[index].item()

    def ranked(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> Iterable[tuple[float, Config]]:
        """The candidates in the order of their predicted times in microseconds, each after its time."""
        many, possible, times = self.timed(problem, device, prepared)
        order = np.argsort(np.where(possible, times, np.inf), kind="stable")[: np.count_nonzero(possible)]
        return ((times[index].item(), chosen(many, index)) for index in order)
