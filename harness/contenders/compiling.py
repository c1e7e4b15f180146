"""Kernels compiled ahead, several at once: compiled one by one, when they are first launched, they take minutes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import Launch
from cuconv.core.problem import ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec
from cuconv.runtime import compiler
from harness import progress


def compile_launches(launches: Iterable[Launch], arch: str) -> int:
    """Compile the kernel variants that the launches need, each once; returns their number.

    arch: such as "sm_90a". All are compiled on return, because threads that compile would delay the host's launches
    while a GPU is timed. Raises CompileError.
    """
    variants = dict.fromkeys(launch.variant(arch) for launch in launches)
    threads = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 2))
    try:
        jobs = [threads.submit(compiler.cubin, variant) for variant in variants]
        for job in progress.counted(as_completed(jobs), "compiling kernels", total=len(jobs)):
            job.result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
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
