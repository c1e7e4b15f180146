"""Kernels compiled ahead, side by side: one after the other, as they are met, they would take minutes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from cuconv import jit, select
from cuconv.algorithms import ALGORITHMS
from cuconv.device import DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import ConvProblem, UnsupportedProblem

Form = tuple[Path, tuple[tuple[str, int], ...]]  # of a kernel: its source, and its macros


def forms_of(launches: Iterable[Launch]) -> list[Form]:
    """What the launches need compiled, each form once, in order."""
    return list(dict.fromkeys((launch.source, tuple(launch.macros.items())) for launch in launches))


class Compiler:
    """Threads that compile forms in the order in which they are started. Use as a context manager."""

    def __init__(self, arch: str):
        """arch: such as "sm_90a"."""
        self._arch = arch
        self._jobs: dict[Form, Future] = {}

    def __enter__(self) -> Compiler:
        self._threads = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 2))
        return self

    def __exit__(self, *exception) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def start(self, forms: Iterable[Form]) -> None:
        for source, macros in forms:
            if (source, macros) not in self._jobs:
                self._jobs[source, macros] = self._threads.submit(jit.cubin, source, self._arch, dict(macros))

    def wait_for(self, forms: Iterable[Form]) -> None:
        """Raises CompileError where one of them, started before, does not compile."""
        for form in forms:
            self._jobs[form].result()


def compile_for(problems: Iterable[ConvProblem], spec: DeviceSpec, algorithms: Iterable[str]) -> int:
    """Compile what these algorithms launch for these problems; returns the number of forms.

    Raises CompileError. What an algorithm does not compute is left out.
    """
    forms = forms_of(_launches(problems, spec, tuple(algorithms)))
    with Compiler(spec.arch) as compiler:
        compiler.start(forms)
        for form in tqdm(forms, desc="compiling kernels", leave=False):
            compiler.wait_for([form])
    return len(forms)


def _launches(problems: Iterable[ConvProblem], spec: DeviceSpec, algorithms: tuple[str, ...]) -> Iterable[Launch]:
    for problem in problems:
        for name in algorithms:
            try:
                plan = select.plan(problem, spec, name)
            except UnsupportedProblem:
                continue
            # torch's tensors are aligned.
            yield from ALGORITHMS[plan.algorithm].launches(problem, plan.config, aligned=True, relu=False)
