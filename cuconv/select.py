"""The choice of an algorithm and its launch configuration: a pure function of problem and device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import Configuration
from cuconv.algorithms.common.implicit_gemm import VECTOR_FLOATS
from cuconv.device import DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import FP32, ConvProblem, UnsupportedProblem


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """An algorithm, by name, and its launch configuration: all that a call of conv2d launches. Prints as one line."""

    algorithm: str
    config: Configuration
    precision: str = FP32  # the algorithm computes in it; FP32 may stand in for the TF32 of a problem
    prepared: bool = False  # chosen for weights that are packed already

    @property
    def workspace_bytes(self) -> int:
        """Temporary device memory of the call, in bytes."""
        return self.config.workspace_bytes

    def __str__(self) -> str:
        return f"{self.algorithm} {self.config}"


@lru_cache(maxsize=4096)
def plan(problem: ConvProblem, device: DeviceSpec, algorithm: str = "auto", prepared: bool = False) -> LaunchPlan:
    """The launch plan of an algorithm; that of "auto" is the plan of least predicted time.

    prepared: for weights that are packed already, so that packing takes no time. Raises ValueError for an unknown name
    and UnsupportedProblem where the algorithm cannot compute the problem.
    """
    if algorithm == "auto":
        return _fastest(problem, device, prepared)
    if algorithm not in ALGORITHMS:
        known = ", ".join(["auto", *ALGORITHMS])
        raise ValueError(f"algorithm={algorithm!r}: must be one of {known}")
    possible = offering(problem.precision)
    if algorithm not in possible:
        raise UnsupportedProblem(
            f"algorithm={algorithm!r} does not compute in precision={problem.precision!r}: "
            f"must be one of {', '.join(['auto', *possible])}"
        )
    config = ALGORITHMS[algorithm].configure(problem, device, prepared)
    return LaunchPlan(algorithm, config, problem.precision, prepared)


def launches_of(
    launch_plan: LaunchPlan,
    problem: ConvProblem,
    aligned: bool,
    relu: bool,
    residual: bool,
    spec: DeviceSpec,
    output_channels: int | None = None,
) -> tuple[Launch, ...]:
    """The kernels of a plan, in the order of their launches; aligned and relu as for Algorithm.launches.

    output_channels: those of the tensor that the output is a slice of, for a plan that `writes_slices`; None where the
    output is a tensor of its own.
    """
    algorithm = ALGORITHMS[launch_plan.algorithm]
    if residual:
        return algorithm.launches_with_residual(problem, launch_plan.config, aligned, relu, spec)
    if output_channels is None:
        return algorithm.launches(problem, launch_plan.config, aligned, relu)
    aligned = aligned and output_channels * problem.out_pixels % VECTOR_FLOATS == 0  # of every image
    added = {"OUTPUT_CHANNELS": output_channels}
    return tuple(
        replace(one, macros={**one.macros, **added}) if one.source == algorithm.source else one
        for one in algorithm.launches(problem, launch_plan.config, aligned, relu)
    )


def writes_slices(launch_plan: LaunchPlan, residual: bool) -> bool:
    """Whether the kernels of a plan can write to a slice of a larger tensor's channels."""
    return ALGORITHMS[launch_plan.algorithm].writes_slices and not residual


def predicted_us(problem: ConvProblem, device: DeviceSpec, launch_plan: LaunchPlan) -> float:
    """The predicted device time of a plan, in microseconds.

    The constants were fitted on an H200; an algorithm scales them by the number of the device's SMs.
    """
    planned = replace(problem, precision=launch_plan.precision)
    algorithm = ALGORITHMS[launch_plan.algorithm]
    predict = algorithm.prepared_us if launch_plan.prepared else algorithm.predicted_us
    return predict(planned, device, launch_plan.config)


def _fastest(problem: ConvProblem, device: DeviceSpec, prepared: bool) -> LaunchPlan:
    """The plan of least predicted time, among those in the problem's precision and in FP32, which is always allowed."""
    plans: list[LaunchPlan] = []
    refusals: dict[str, UnsupportedProblem] = {}
    for name in offering(problem.precision):
        try:
            plans.append(plan(problem, device, name, prepared))
        except UnsupportedProblem as error:
            refusals[name] = error
    if problem.precision != FP32:
        plans.append(plan(replace(problem, precision=FP32), device, prepared=prepared))
    if not plans:
        # Of the algorithm that computes the most, since its reason is the most general.
        raise refusals["two_stage" if problem.is_dense else "tf32x3_gemm"]
    return min(plans, key=lambda candidate: predicted_us(problem, device, candidate))
