"""Which algorithm with which launch configuration: a pure function of problem and device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cuconv.algorithms import ALGORITHMS
from cuconv.device import DeviceSpec
from cuconv.problem import ConvProblem


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
    """The launch plan of an algorithm; "auto" lets cuConv choose.

    Raises ValueError for an unknown name and UnsupportedProblem where the algorithm cannot compute the problem.
    """
    name = select(problem, device) if algorithm == "auto" else algorithm
    if name not in ALGORITHMS:
        known = ", ".join(["auto", *ALGORITHMS])
        raise ValueError(f"algorithm={algorithm!r}: must be one of {known}")
    return LaunchPlan(name, ALGORITHMS[name].configure(problem, device))


def select(problem: ConvProblem, device: DeviceSpec) -> str:
    """The algorithm that "auto" stands for; so far there is one."""
    return "two_stage"
