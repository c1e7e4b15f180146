"""Which algorithm with which launch configuration: a pure function of problem and device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.two_stage import LOADS, REUSE, TwoStageConfig
from cuconv.device import DeviceSpec
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a call will do: the algorithm by name, and its launch configuration. Prints as one line."""

    algorithm: str
    config: Any

    @property
    def workspace_bytes(self) -> int:
        """Temporary device memory of the call."""
        return self.config.workspace_bytes

    def __str__(self) -> str:
        return f"{self.algorithm} {self.config}"


@lru_cache(maxsize=4096)
def plan(problem: ConvProblem, device: DeviceSpec, algorithm: str = "auto") -> LaunchPlan:
    """The launch plan of an algorithm; "auto" takes the one of least predicted time.

    Raises ValueError for an unknown name and UnsupportedProblem where the algorithm cannot compute the problem.
    """
    if algorithm == "auto":
        return _fastest(problem, device)
    if algorithm not in ALGORITHMS:
        known = ", ".join(["auto", *ALGORITHMS])
        raise ValueError(f"algorithm={algorithm!r}: must be one of {known}")
    return LaunchPlan(algorithm, ALGORITHMS[algorithm].configure(problem, device))


def predicted_us(problem: ConvProblem, device: DeviceSpec, launch_plan: LaunchPlan) -> float:
    """Estimated device time of a plan in microseconds, by the constants of an H200 scaled to the device's SMs."""
    if launch_plan.algorithm == "two_stage":
        return _two_stage_us(problem, device, launch_plan.config)
    return ALGORITHMS[launch_plan.algorithm].predicted_us(problem, device, launch_plan.config)


def _fastest(problem: ConvProblem, device: DeviceSpec) -> LaunchPlan:
    plans, refusal = [], None
    for name in ALGORITHMS:
        try:
            plans.append(plan(problem, device, name))
        except UnsupportedProblem as error:
            refusal = refusal or error
    if not plans:
        raise refusal  # of the first algorithm: the others compute less
    return min(plans, key=lambda candidate: predicted_us(problem, device, candidate))


def _two_stage_us(problem: ConvProblem, device: DeviceSpec, config: TwoStageConfig) -> float:
    """Within 9% (root mean square) over the paper's 602 configurations on an H200, batch 1 to 256.

    Its stages move what is too large for the cache, and rarely share it with the arithmetic: the times add up.
    """
    passes = ceil(problem.n / config.images_per_pass)
    outputs_bytes = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels
    flop_per_us = (23.5e6 if config.rows == REUSE[0][0] else 13.8e6) * device.sm_count / 132
    us = 2.05 + passes * 0.412 * ceil(problem.c / LOADS) + problem.flop / flop_per_us + outputs_bytes / 2.27e6
    if config.sum_blocks:
        us += passes * 3.27 + 2 * outputs_bytes * problem.filter_area / 3.12e6  # planes, written and read again
    return us
