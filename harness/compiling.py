"""Kernels compiled ahead of a sweep, side by side: one after the other, as they are met, they would take minutes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from tqdm import tqdm

from cuconv import jit, select
from cuconv.algorithms import ALGORITHMS
from cuconv.device import DeviceSpec
from cuconv.problem import ConvProblem, UnsupportedProblem


def compile_for(problems: Iterable[ConvProblem], spec: DeviceSpec, algorithms: Iterable[str]) -> int:
    """Compile what these algorithms launch for these problems; returns how many kernels' forms that is.

    Raises CompileError. What an algorithm does not compute is left out.
    """
    wanted = list(dict.fromkeys(_forms(problems, spec, algorithms)))
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as threads:
        jobs = [threads.submit(jit.cubin, source, spec.arch, dict(macros)) for source, macros in wanted]
        for job in tqdm(as_completed(jobs), total=len(jobs), desc="compiling kernels", leave=False):
            job.result()
    return len(wanted)


def _forms(problems: Iterable[ConvProblem], spec: DeviceSpec, algorithms: Iterable[str]) -> Iterable[tuple]:
    algorithms = tuple(algorithms)
    for problem in problems:
        for name in algorithms:
            try:
                plan = select.plan(problem, spec, name)
            except UnsupportedProblem:
                continue
            # torch's tensors are aligned.
            for launch in ALGORITHMS[plan.algorithm].launches(problem, plan.config, aligned=True, relu=False):
                yield launch.source, tuple(launch.macros.items())
