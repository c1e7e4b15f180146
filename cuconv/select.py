"""The choice of an algorithm and its launch configuration: a pure function of problem and device."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from heapq import merge
from math import inf, log
from typing import Any

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import CallOptions, Configuration, NotInSet
from cuconv.core.launch import Launch
from cuconv.core.problem import FP32, TF32, ConvProblem, UnsupportedProblem, shown
from cuconv.device import DeviceSpec

BATCH_INVARIANT = "batch_invariant"
"""The name of the choice under which an image's output does not depend on its batch."""

READY = "ready"
"""The name of "auto" for callers with another way to compute: it refuses to wait for kernels to compile."""

MAX_SLOWDOWN = 4.0  # a plan this much slower still runs while the kernels of a faster one compile

MAX_WORKSPACE_BYTES = 2**30  # a plan of "auto" takes no more

ROUNDING = 1 + 1e-9  # a bound may be above its predicted time by rounding, and by less than this

TYPICAL_BATCHES = (1, 8, 32, 256)  # over whose predicted times the way to add an image's products is chosen

Arithmetic = tuple[str, str, Hashable]
"""An algorithm, its precision, and its `summation`: what decides the bits of an output."""


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


def check_options(algorithm: Any, precision: Any) -> None:
    """Raise ValueError for an algorithm or a precision that is no name."""
    for name, value, example in (("algorithm", algorithm, "auto"), ("precision", precision, FP32)):
        if not isinstance(value, str):
            raise ValueError(f"{name}={shown(value)}: must be a name, such as {example!r}")


@lru_cache(maxsize=4096)
def plan(
    problem: ConvProblem,
    device: DeviceSpec,
    algorithm: str = "auto",
    prepared: bool = False,
    residual: bool = False,
    aligned: bool = True,
) -> LaunchPlan:
    """The launch plan of an algorithm; that of "auto" is the plan of least predicted time.

    Both are the fastest whose kernels are of the closed set (`cuconv.algorithms.kernel_set`); a named algorithm takes
    others where the set has none for the problem.

    prepared: for weights that are packed already, so that packing takes no time. residual: for a call that adds one,
    which takes one more kernel where the algorithm does not add it itself. aligned: for operands that all start at a
    multiple of 16 bytes. Raises ValueError for an unknown name and UnsupportedProblem where the algorithm cannot
    compute the problem.
    """
    options = CallOptions(aligned, residual=residual, packed=prepared)
    if algorithm in ("auto", READY):
        return _fastest(problem, device, options)
    if algorithm == BATCH_INVARIANT:
        return _batch_invariant(problem, device, prepared)
    if algorithm not in ALGORITHMS:
        known = ", ".join(["auto", READY, BATCH_INVARIANT, *ALGORITHMS])
        raise ValueError(f"algorithm={algorithm!r}: must be one of {known}")
    possible = offering(problem.precision)
    if algorithm not in possible:
        raise UnsupportedProblem(
            f"algorithm={algorithm!r} does not compute in precision={problem.precision!r}: "
            f"must be one of {', '.join(['auto', *possible])}"
        )
    try:
        _, config = ALGORITHMS[algorithm].weighed(problem, device, options)
    except NotInSet:
        config = ALGORITHMS[algorithm].configure(problem, device, prepared)
    return LaunchPlan(algorithm, config, problem.precision, prepared)


def alternatives(
    problem: ConvProblem, device: DeviceSpec, prepared: bool = False, residual: bool = False, aligned: bool = True
) -> Iterator[LaunchPlan]:
    """The plans that "auto" chooses from, by predicted time, up to MAX_SLOWDOWN times that of the first.

    The arguments are those of `plan`.
    """
    options = CallOptions(aligned, residual=residual, packed=prepared)

    def timed(name: str, planned: ConvProblem) -> Iterator[tuple[float, LaunchPlan]]:
        added_us = ALGORITHMS[name].adding_us(planned, options)
        with suppress(UnsupportedProblem):
            for us, config in ALGORITHMS[name].ranked(planned, device, options):
                one = LaunchPlan(name, config, planned.precision, prepared)
                if one.workspace_bytes <= MAX_WORKSPACE_BYTES:
                    yield us + added_us, one

    precisions = [problem, replace(problem, precision=FP32)] if problem.precision == TF32 else [problem]
    # Superseded algorithms too: their kernels may be there.
    plans = [timed(name, planned) for planned in precisions for name in offering(planned.precision)]
    limit_us = inf
    for us, one in merge(*plans, key=lambda timed: timed[0]):
        limit_us = min(limit_us, MAX_SLOWDOWN * us)
        if us > limit_us:
            return
        yield one


def launches_of(launch_plan: LaunchPlan, problem: ConvProblem, options: CallOptions) -> tuple[Launch, ...]:
    """The kernels of a plan, in the order of their launches."""
    return ALGORITHMS[launch_plan.algorithm].launches(problem, launch_plan.config, options)


def writes_slices(launch_plan: LaunchPlan, residual: bool) -> bool:
    """Whether the kernels of a plan can write to a slice of a larger tensor's channels."""
    return ALGORITHMS[launch_plan.algorithm].writes_slices and not residual


def predicted_us(
    problem: ConvProblem, device: DeviceSpec, launch_plan: LaunchPlan, residual: bool = False, aligned: bool = True
) -> float:
    """The predicted device time of a plan in microseconds, without a kernel that adds a residual.

    residual, aligned: as those of `plan`. The constants were fitted on an H200; an algorithm scales them by the number
    of the device's SMs.
    """
    if problem.precision != launch_plan.precision:
        problem = replace(problem, precision=launch_plan.precision)
    algorithm, config = ALGORITHMS[launch_plan.algorithm], launch_plan.config
    predict = algorithm.prepared_us if launch_plan.prepared else algorithm.predicted_us
    options = CallOptions(aligned, residual=residual, packed=launch_plan.prepared)
    slowdown = algorithm.slowdown(problem, device, config, options)
    return predict(problem, device, config) * (slowdown if slowdown < inf else 1.0)


def _fastest(problem: ConvProblem, device: DeviceSpec, options: CallOptions) -> LaunchPlan:
    """The plan of least predicted time, among those in the problem's precision and in FP32, which is always allowed."""
    best, best_us = None, inf
    # Algorithms that were weighed, or whose bound is above the best time: what they supersede is skipped.
    settled: set[str] = set()
    refusals: dict[str, UnsupportedProblem] = {}
    for least_us, name in _by_bound(problem, device, options.packed):
        algorithm = ALGORITHMS[name]
        added_us = algorithm.adding_us(problem, options)
        if algorithm.superseded_by in settled:
            continue
        if best and least_us + added_us > ROUNDING * best_us:
            if least_us < inf:  # an algorithm that cannot run leaves the one that it supersedes to be tried
                settled.add(name)
            continue
        try:
            us, config = algorithm.weighed(problem, device, options)
            one = LaunchPlan(name, config, problem.precision, options.packed)
            _check_workspace(problem, one)
        except UnsupportedProblem as error:
            refusals[name] = error
            continue
        settled.add(name)
        if us + added_us < best_us:
            best, best_us = one, us + added_us
    if problem.precision == TF32:
        one = plan(replace(problem, precision=FP32), device, "auto", options.packed, options.residual, options.aligned)
        added_us = ALGORITHMS[one.algorithm].adding_us(problem, options)
        if predicted_us(problem, device, one, options.residual, options.aligned) + added_us < best_us:
            best = one
    if best is None:
        # The algorithm that computes the most gives the most general reason.
        general = "nhwc_wgmma" if problem.is_channels_last else "two_stage" if problem.is_dense else "tf32x3_gemm"
        raise refusals[general]
    return best


def _by_bound(problem: ConvProblem, device: DeviceSpec, prepared: bool) -> list[tuple[float, str]]:
    """The algorithms that offer a precision, each after its bound, in the order in which they are to be weighed.

    Those that supersede others come first, unless there are groups: they are the fastest for most problems, and a low
    time leaves others out. The superseded come last.
    """
    first, others, superseded = _in_order(problem.precision)
    at_once, bounded = (first, others) if problem.groups == 1 else ([], [*first, *others])
    bounds = sorted((ALGORITHMS[name].least_us(problem, device, prepared), name) for name in bounded)
    return [*((0.0, name) for name in at_once), *bounds, *((0.0, name) for name in superseded)]


@cache
def _in_order(precision: str) -> tuple[list[str], list[str], list[str]]:
    """The names of the algorithms that offer a precision: those that supersede others, others, and those superseded."""
    names = offering(precision)
    superseded = [name for name in names if ALGORITHMS[name].superseded_by is not None]
    first = [name for name in names if name in {ALGORITHMS[other].superseded_by for other in superseded}]
    return first, [name for name in names if name not in first and name not in superseded], superseded


def _check_workspace(problem: ConvProblem, launch_plan: LaunchPlan) -> None:
    """Raise UnsupportedProblem for a plan that needs more temporary memory than a call may take unasked."""
    if launch_plan.workspace_bytes > MAX_WORKSPACE_BYTES:
        raise UnsupportedProblem(
            f"{problem.label}: {launch_plan.algorithm} needs {launch_plan.workspace_bytes} bytes of temporary memory, "
            f"the limit of 'auto' is {MAX_WORKSPACE_BYTES}: convolve parts of the image, or ask "
            f"for algorithm={launch_plan.algorithm!r}"
        )


def _batch_invariant(problem: ConvProblem, device: DeviceSpec, prepared: bool) -> LaunchPlan:
    """The plan of least predicted time among those that add an image's products alike in every batch.

    The algorithm and the order of its sums are those of least predicted time over all TYPICAL_BATCHES, and the other
    parameters those of least predicted time for this batch.
    """
    chosen = _arithmetic_of(replace(problem, n=1), device, prepared)
    alike = _by_arithmetic(problem, device, prepared).get(chosen)
    if alike is None:
        raise UnsupportedProblem(
            f"{problem.label}: {chosen[0]}, which computes smaller batches alike, does not compute this one"
        )
    return alike


@lru_cache(maxsize=4096)
def _arithmetic_of(problem: ConvProblem, device: DeviceSpec, prepared: bool) -> Arithmetic:
    """The arithmetic that all batches of a layer have in common; problem: that of one image."""
    plans = [(n, _by_arithmetic(replace(problem, n=n), device, prepared)) for n in TYPICAL_BATCHES]
    common = set.intersection(*(set(of_batch) for _, of_batch in plans))
    if not common:
        raise UnsupportedProblem(f"{problem.label}: no algorithm computes it alike in every batch; use 'auto'")

    def cost(arithmetic: Arithmetic) -> float:
        times = (predicted_us(replace(problem, n=n), device, of_batch[arithmetic]) for n, of_batch in plans)
        return sum(map(log, times))

    return min(sorted(common, key=str), key=cost)


def _by_arithmetic(problem: ConvProblem, device: DeviceSpec, prepared: bool) -> dict[Arithmetic, LaunchPlan]:
    """The plan of least predicted time for each way to add an image's products that does not depend on the batch."""
    best: dict[Arithmetic, tuple[float, LaunchPlan]] = {}
    for precision in (TF32, FP32) if problem.precision == TF32 else (problem.precision,):
        for name in offering(precision):
            for config, us in _times_of(name, replace(problem, precision=precision), device, prepared).items():
                summation = ALGORITHMS[name].summation(config)
                arithmetic = (name, precision, summation)
                if summation is not None and (arithmetic not in best or us < best[arithmetic][0]):
                    best[arithmetic] = us, LaunchPlan(name, config, precision, prepared)
    return {arithmetic: one for arithmetic, (_, one) in best.items()}


def _times_of(name: str, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> dict[Any, float]:
    """The predicted time of each configuration of an algorithm, as by `predicted_us`; none where it cannot run."""
    options = CallOptions(packed=prepared)
    found: dict[Any, float] = {}
    with suppress(UnsupportedProblem):
        for closed in (False, True):
            found.update((config, us) for us, config in ALGORITHMS[name].ranked(problem, device, options, closed))
    return found
