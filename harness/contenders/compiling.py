"""Kernels compiled ahead, several at once: compiled one by one, when they are first launched, they take minutes."""

from __future__ import annotations

from collections.abc import Iterable

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import Launch
from cuconv.core.problem import ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec
from cuconv.precompile import compile_missing
from harness import progress


def compile_launches(launches: Iterable[Launch], arch: str) -> int:
    """Compile the kernel variants that the launches need, each once; returns their number.

    arch: such as "sm_90a". All are compiled on return, because threads that compile would delay the host's launches
    while a GPU is timed. Raises CompileError.
    """
    variants = dict.fromkeys(launch.variant(arch) for launch in launches)
    with progress.counted((), "compiling kernels") as bar:

        def compiled(done: int, missing: int) -> None:
            bar.total = missing  # the others are at hand
            bar.update()

        compile_missing(variants, compiled)
    return len(variants)


def compile_for(problems: Iterable[ConvProblem], spec: DeviceSpec, algorithms: Iterable[str]) -> int:
    """Compile the kernels that these algorithms launch for these problems; returns the number of kernel variants.

    An algorithm is left out for a problem that it does not compute. Raises CompileError.
    """
    return compile_launches(_launches(problems, spec, tuple(algorithms)), spec.arch)


def _launches(problems: Iterable[ConvProblem], spec: DeviceSpec, algorithms: tuple[str, ...]) -> Iterable[Launch]:
    for problem in problems:
        for name in algorithms:
            try:
                plan = select.plan(problem, spec, name)
            except UnsupportedProblem:
                continue
            # torch's tensors are aligned.
            yield from ALGORITHMS[plan.algorithm].launches(problem, plan.config)
