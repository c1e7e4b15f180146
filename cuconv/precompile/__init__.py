"""Kernels compiled before they are needed, several at once: otherwise the first calls do without the fastest ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import ceil
from typing import NamedTuple

from cuconv import select
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common.implicit_gemm import VECTOR_FLOATS
from cuconv.conv import plan
from cuconv.core.activation import NONE, Activated, Activation, activation_of
from cuconv.core.launch import KernelVariant, Launch
from cuconv.core.problem import ConvProblem, UnsupportedProblem, shown
from cuconv.device import DeviceSpec, device_spec, spec_given
from cuconv.runtime import compiler, driver, launch_sequence

OTHER_SIZES = (0.5, 0.75, 1.5, 2.0, 3.0)


def precompile(
    problems: Iterable[ConvProblem],
    device: DeviceSpec | int | None = None,
    *,
    residual: bool = False,
    activation: Activated = None,
    prepared: bool = False,
    algorithm: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Compile the kernels that conv2d launches for problems; returns how many had to be compiled.

    The others ship, or are in the compile cache. Operands are taken to start at multiples of 16 bytes, as those of
    torch and CuPy do; bias needs no kernels of its own. The kernels are compiled on all processor cores, and
    no GPU is needed.

    device      a DeviceSpec, a GPU's ordinal, or None for the current GPU
    residual    whether the calls have a residual
    activation  what the calls have as activation, or None; it needs no kernels of its own
    prepared    whether they are calls of what `prepare` returns
    algorithm   as of conv2d: "auto", or the name of an algorithm
    progress    called with the number of kernels that are compiled and the number of all, after each

    Raises UnsupportedProblem and ValueError as conv2d does, and CompileError where a kernel does not compile.
    """
    try:
        problems = list(problems)
    except TypeError:
        raise TypeError(f"problems={shown(problems)}: must be several of ConvProblem, such as a list") from None
    calls = [PlannedCall(problem, residual, activation=activation_of(activation)) for problem in problems]
    return precompile_calls(calls, device, prepared=prepared, algorithm=algorithm, progress=progress)


class PlannedCall(NamedTuple):
    """A call whose kernels are to be compiled.

    output_channels: those of the tensor that the output is a slice of; None for a tensor of its own.
    """

    problem: ConvProblem
    residual: bool = False
    output_channels: int | None = None
    activation: Activation = NONE


def computed(calls: Iterable[PlannedCall], spec: DeviceSpec) -> list[PlannedCall]:
    """The calls that cuConv computes; `cuconv.nn` leaves the others to torch."""
    found = []
    for call in calls:
        with suppress(UnsupportedProblem):
            plan(call.problem, spec, residual=call.residual)
            found.append(call)
    return found


def precompile_calls(
    calls: Iterable[PlannedCall],
    device: DeviceSpec | int | None = None,
    *,
    prepared: bool = False,
    algorithm: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """`precompile` for calls that differ in more than their problems."""
    return compile_missing(_kernels(calls, spec_given(device), prepared, algorithm), progress)


def compile_missing(kernels: Iterable[KernelVariant], progress: Callable[[int, int], object] | None = None) -> int:
    """Compile the kernel variants that are not at hand, on all processor cores; returns how many those are.

    progress: as of `precompile`. An error, or Ctrl-C, leaves out what has not begun to compile.
    """
    missing = [kernel for kernel in kernels if compiler.find(kernel) is None]
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # NVRTC runs outside of Python's lock
        jobs = [threads.submit(compiler.cubin, kernel) for kernel in missing]
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                job.result()
                if progress is not None:
                    progress(done, len(missing))
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return len(missing)


def load_for_other_sizes(calls: Iterable[PlannedCall], device: int, prepared: bool) -> None:
    """Load the kernels that the calls need for images of OTHER_SIZES, if they need not be compiled.

    A first call at such a size then rarely loads a kernel. device: the GPU's ordinal. prepared: as of `precompile`.
    """
    spec, loaded = device_spec(device), set()
    with driver.made_current(device):
        for call in _at_other_sizes(calls):
            with suppress(UnsupportedProblem, driver.DriverError):  # sizes that may never come are no reason to fail
                for launch in _launches([call], spec, prepared, "auto"):
                    kernel = launch.variant(spec.arch), launch.kernel
                    if kernel not in loaded and launch_sequence.is_available(kernel[0], device):
                        launch_sequence.LaunchSequence([launch], spec.arch, device)
                        loaded.add(kernel)


def _at_other_sizes(calls: Iterable[PlannedCall]) -> Iterator[PlannedCall]:
    """The calls for images of OTHER_SIZES times the rows and columns; layers of one pixel have no other size."""
    for call, factor in product(dict.fromkeys(calls), OTHER_SIZES):
        p = call.problem
        if (p.h, p.w) != (1, 1):
            with suppress(UnsupportedProblem):  # an image smaller than the filter
                yield call._replace(problem=replace(p, h=ceil(p.h * factor), w=ceil(p.w * factor)))


def _kernels(calls: Iterable[PlannedCall], spec: DeviceSpec, prepared: bool, algorithm: str) -> list[KernelVariant]:
    """The kernel variants of the calls' plans, each once."""
    launches = _launches(calls, spec, prepared, algorithm)
    return list(dict.fromkeys(launch.variant(spec.arch) for launch in launches))


def _launches(calls: Iterable[PlannedCall], spec: DeviceSpec, prepared: bool, algorithm: str) -> Iterator[Launch]:
    """The launches of each call's plan, in order. With `prepared`, the launch that packs the weights is left out."""
    for problem, residual, output_channels, activation in calls:
        chosen = plan(problem, spec, algorithm, prepared=prepared, residual=residual)
        is_unaligned = output_channels is not None and output_channels * problem.out_pixels % VECTOR_FLOATS
        if is_unaligned and not problem.is_channels_last:  # their kernels look at the channels themselves
            chosen = select.plan(problem, spec, algorithm, prepared, residual, aligned=False)
        written = output_channels if select.writes_slices(chosen, residual) else None
        # With packed weights the main kernel and what packs them are of one module.
        options = CallOptions(
            activation=activation, residual=residual, output_channels=written, packed=prepared,
            overlap=spec.has_dependent_launch,
        )  # fmt: skip
        yield from select.launches_of(chosen, problem, options)
