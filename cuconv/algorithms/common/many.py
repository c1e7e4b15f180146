"""Many launch configurations as one object: element i of each of its NumPy arrays belongs to configuration i.

A new size of a layer is planned while its caller waits. Arrays take a few microseconds for what a loop over
configurations takes a millisecond. Cost models use NumPy's functions, which take one configuration as well.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from math import inf
from typing import Any, TypeVar

import numpy as np

from cuconv.algorithms.base import Algorithm, CallOptions, Config, Costs
from cuconv.core.problem import ConvProblem
from cuconv.device import DeviceSpec

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

    def slowdowns(self, problem: ConvProblem, device: DeviceSpec, many: Config, options: CallOptions) -> Any:
        """The `slowdown` of each configuration that `many` made, as an array, or one number for all."""
        return 1.0

    def weighed(self, problem: ConvProblem, device: DeviceSpec, options: CallOptions) -> tuple[float, Config]:
        """The first of `ranked`; raises NotInSet or UnsupportedProblem where there is none."""
        many, times = self._times(problem, device, options, closed=True)
        index = times.argmin()
        us = times.item(index)
        if us == inf:
            raise self.not_in_set(problem)
        return us, chosen(many, index)

    def ranked(
        self, problem: ConvProblem, device: DeviceSpec, options: CallOptions, closed: bool = True
    ) -> Iterable[tuple[float, Config]]:
        """The candidates in the order of their predicted times in microseconds, each after its time.

        closed: those alone whose kernels are of the closed set, with the times of these kernels.
        """
        many, times = self._times(problem, device, options, closed)
        order = np.argsort(times, kind="stable")[: np.count_nonzero(times < inf)]
        return ((times.item(index), chosen(many, index)) for index in order)

    def _times(
        self, problem: ConvProblem, device: DeviceSpec, options: CallOptions, closed: bool
    ) -> tuple[Config, Any]:
        """The configurations and their times, which are inf where one cannot run or, if closed, has no kernels."""
        many, possible, times = self.timed(problem, device, options.packed)
        if closed:
            times = times * self.slowdowns(problem, device, many, options)
        return many, np.where(possible, times, inf)
