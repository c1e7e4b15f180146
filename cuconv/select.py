"""The choice of an algorithm and its launch configuration: a pure function of problem and device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import Configuration
from cuconv.device import DeviceSpec
from cuconv.problem import FP32, ConvProblem, UnsupportedProblem


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """An algorithm, by name, and its launch configuration: all that a call of conv2d launches. Prints as one line."""

    algorithm: str
    config: Configuration
    precision: str = FP32  # the algorithm computes in it; FP32 may stand in for the TF32 of a problem

    @property
    def workspace_bytes(self) -> int:
        """Temporary device memory of the call, in bytes."""
        return self.config.workspace_bytes

    def __str__(self) -> str:
        return f"{self.algorithm} {self.config}"


@lru_cache(maxsize=4096)
def plan(problem: ConvProblem, device: DeviceSpec, algorithm: str = "auto") -> LaunchPlan:
    """The launch plan of an algorithm; that of "auto" is the plan of least predicted time.

    Raises ValueError for an unknown name and UnsupportedProblem where the algorithm cannot compute the problem.
    """
    if algorithm == "auto":
        return _fastest(problem, device)
    if algorithm not in ALGORITHMS:
        known = ", ".join(["auto", *ALGORITHMS])
        raise ValueError(f"algorithm={algorithm!r}: must be one of {known}")
    possible = offering(problem.precision)
    if algorithm not in possible:
        raise UnsupportedProblem(
            f"algorithm={algorithm!r} does not compute in precision={problem.precision!r}: "
            f"must be one of {', '.join(['auto', *possible])}"
        )
    return LaunchPlan(algorithm, ALGORITHMS[algorithm].configure(problem, device), problem.precision)


def predicted_us(problem: ConvProblem, device: DeviceSpec, launch_plan: LaunchPlan) -> float:
    """The predicted device time of a plan, in microseconds.

    The constants were fitted on an H200; an algorithm scales them by the number of the device's SMs.
    """
    planned = replace(problem, precision=launch_plan.precision)
    return ALGORITHMS[launch_plan.algorithm].predicted_us(planned, device, launch_plan.config)


def _fastest(problem: ConvProblem, device: DeviceSpec) -> LaunchPlan:
    """The plan of least predicted time, among those in the problem's precision and in FP32, which is always allowed."""
    plans, refusals = [], []
    for name in offering(problem.precision):
        try:
            plans.append(plan(problem, device, name))
        except UnsupportedProblem as error:
            refusals.append(error)
    if problem.precision != FP32:
        plans.append(plan(replace(problem, precision=FP32), device))
    if not plans:
        raise refusals[0]  # the first algorithm computes the most, so its reason is the most general
    return min(plans, key=lambda candidate: predicted_us(problem, device, candidate))
