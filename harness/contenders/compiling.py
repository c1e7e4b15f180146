"""Kernels compiled ahead, several at once: compiled one by one, when they are first launched, they take minutes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cuconv import jit, select
from cuconv.algorithms import ALGORITHMS
from cuconv.cubins import Cubin
from cuconv.device import DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import ConvProblem, UnsupportedProblem
from harness import progress

KernelVariant = tuple[Path, tuple[tuple[str, int], ...]]  # a CUDA source, and the macros that it is compiled with


def variants_of(launches: Iterable[Launch]) -> list[KernelVariant]:
    """The kernel variants that the launches need compiled, each once, in order."""
    return list(dict.fromkeys((launch.source, tuple(launch.macros.items())) for launch in launches))


class Compiler:
    """Threads that compile kernel variants in the order in which they are started. Use as a context manager."""

    def __init__(self, arch: str):
        """arch: such as "sm_90a"."""
        self._arch = arch
        self._jobs: dict[KernelVariant, Future[Cubin]] = {}

    def __enter__(self) -> Compiler:
        self._threads = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 2))
        return self

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def start(self, variants: Iterable[KernelVariant]) -> None:
        """Begin to compile the variants that were not started before."""
        for source, macros in variants:
            if (source, macros) not in self._jobs:
                self._jobs[source, macros] = self._threads.submit(jit.cubin, source, self._arch, dict(macros))

    def wait_for(self, variants: Iterable[KernelVariant]) -> None:
        """Wait for variants that were started before. Raises CompileError where one of them does not compile."""
        for variant in variants:
            self._jobs[variant].result()


def compile_for(problems: Iterable[ConvProblem], spec: DeviceSpec, algorithms: Iterable[str]) -> int:
    """Compile the kernels that these algorithms launch for these problems; returns the number of kernel variants.

    An algorithm is left out for a problem that it does not compute. Raises CompileError.
    """
    variants = variants_of(_launches(problems, spec, tuple(algorithms)))
    with Compiler(spec.arch) as compiler:
        compiler.start(variants)
        for variant in progress.counted(variants, "compiling kernels"):
            compiler.wait_for([variant])
    return len(variants)


def _launches(problems: Iterable[ConvProblem], spec: DeviceSpec, algorithms: tuple[str, ...]) -> Iterable[Launch]:
    for problem in problems:
        for name in algorithms:
            try:
                plan = select.plan(problem, spec, name)
            except UnsupportedProblem:
                continue
            # torch's tensors are aligned.
            yield from ALGORITHMS[plan.algorithm].launches(problem, plan.config)
