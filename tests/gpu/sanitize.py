"""python -m tests.gpu.sanitize: every algorithm under compute-sanitizer's memcheck and racecheck, on a GPU.

Each tool runs this module again with --launch, which launches configurations of every algorithm in both precisions on
small problems: filters of 1x1, 3x3, 5x5 and 7x7, odd shapes, blocks alone and in clusters. For each tool the number of
configurations and of errors is printed. The exit code is 1 where there was an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import Algorithm, Configuration
from cuconv.device import DeviceSpec, device_spec
from cuconv.jit import Launch, LaunchSequence, cubin
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

TOOLS = ("memcheck", "racecheck")
CONFIGURATIONS = {"memcheck": 12, "racecheck": 6}  # of an algorithm on a problem, spread over all that can run
# What a tool does not follow in the kernel as it is launched otherwise; the header that has the macro says why.
MACROS = {("racecheck", "fp16x3_pointwise"): {"ALL_LANES_ARRIVE": 1}}

# Small: under racecheck a launch takes a thousand times as long.
PROBLEMS = (
    ConvProblem(1, 64, 7, 7, 64, 1, 1),
    ConvProblem(2, 100, 9, 5, 52, 1, 1),
    ConvProblem(3, 132, 7, 7, 100, 1, 1),
    ConvProblem(2, 17, 28, 28, 33, 1, 1),
    ConvProblem(1, 200, 8, 8, 40, 1, 1),
    ConvProblem(1, 3, 16, 12, 20, 3, 3, 1, 1),
    ConvProblem(2, 48, 13, 9, 70, 3, 3, 1, 1),
    ConvProblem(1, 65, 7, 7, 129, 3, 3),
    ConvProblem(1, 32, 14, 14, 200, 3, 3, 1, 1),
    ConvProblem(2, 24, 11, 8, 40, 5, 5, 2, 2),
    ConvProblem(1, 20, 9, 14, 130, 5, 5, 2, 2),
    ConvProblem(1, 18, 10, 11, 24, 7, 7, 3, 3),
)
Job = tuple[str, Algorithm, ConvProblem, Configuration]


def main(arguments: list[str] | None = None) -> int:
    """Run the tools, or with --launch the kernels themselves; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.sanitize", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tool", nargs="+", choices=TOOLS, default=TOOLS, help="(default: all)")
    parser.add_argument("--algorithm", nargs="+", choices=ALGORITHMS, default=tuple(ALGORITHMS), help="(default: all)")
    parser.add_argument("--launch", choices=TOOLS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.launch:
        _launch_all(options.launch, options.algorithm)
        return 0
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(sanitizer):
        print("sanitize: compute-sanitizer is not on the PATH: install the CUDA toolkit", file=sys.stderr)
        return 2
    _compile_all(options.algorithm)
    return max([_run(sanitizer, tool, options.algorithm) for tool in options.tool])


def _run(sanitizer: str, tool: str, algorithms: list[str]) -> int:
    """Run the kernels under one tool; prints what it says of kernels that are not right, and its count."""
    command = [sanitizer, "--tool", tool, "--print-limit", "100", sys.executable, "-m", "tests.gpu.sanitize"]
    done = subprocess.run([*command, "--launch", tool, "--algorithm", *algorithms], capture_output=True, text=True)
    launched = re.search(r"^launched (\d+) configurations", done.stdout, re.MULTILINE)
    summary = re.search(r"ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: .*\((\d+) errors?, (\d+) warnings?\)", done.stdout)
    if launched is None or summary is None or done.returncode:
        print(f"{tool}: did not finish (exit code {done.returncode})\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")
        return 1
    errors = sum(int(number) for number in summary.groups() if number)
    if errors:
        print("\n".join(line for line in done.stdout.splitlines() if line.startswith(("=========", "on "))))
    print(f"{tool}: {launched[1]} configurations of {len(algorithms)} algorithms, {errors} errors")
    return int(errors > 0)


def _jobs(tool: str, algorithms: list[str], device: DeviceSpec) -> Iterator[Job]:
    """The configurations to launch: of each algorithm, precision and problem a few, spread over all that can run."""
    for name in algorithms:
        algorithm = ALGORITHMS[name]
        for precision in algorithm.precisions:
            for problem in PROBLEMS:
                problem = replace(problem, precision=precision)
                try:
                    found = algorithm.candidates(problem, device)
                except UnsupportedProblem:
                    continue
                step = max(1, len(found) // CONFIGURATIONS[tool])
                for config in found[::step]:
                    yield name, algorithm, problem, config


def _launches(tool: str, job: Job) -> tuple[Launch, ...]:
    name, algorithm, problem, config = job
    launches = algorithm.launches(problem, config, aligned=True, relu=True)
    added = MACROS.get((tool, name), {})
    return tuple(replace(launch, macros={**launch.macros, **added}) for launch in launches)


def _compile_all(algorithms: list[str]) -> None:
    """Compile ahead, side by side: under a tool it would take long."""
    from concurrent.futures import ThreadPoolExecutor

    device = device_spec(0)
    launches = [one for tool in TOOLS for job in _jobs(tool, algorithms, device) for one in _launches(tool, job)]
    kernels = {(launch.source, tuple(launch.macros.items())) for launch in launches}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda kernel: cubin(kernel[0], device.arch, dict(kernel[1])), kernels))


def _launch_all(tool: str, algorithms: list[str]) -> None:
    """Launch every job once on random data, in memory of exactly the size that it may touch."""
    import cupy
    import numpy

    device, count = device_spec(0), 0
    cupy.cuda.set_allocator(None)  # so that the tool sees the end of each array
    random = numpy.random.default_rng(0)
    for job in _jobs(tool, algorithms, device):
        name, _, problem, config = job
        print(f"on {name} {config} of {problem.label} in {problem.precision}", flush=True)
        shapes = (problem.input_shape, problem.weight_shape)
        input, weight = (cupy.asarray(random.standard_normal(shape, dtype=numpy.float32)) for shape in shapes)
        bias, output = cupy.ones(problem.m, cupy.float32), cupy.empty(problem.output_shape, cupy.float32)
        workspace = cupy.empty(max(1, -(-config.workspace_bytes // FLOAT_BYTES)), cupy.float32)
        sequence = LaunchSequence(_launches(tool, job), device.arch, 0)
        operands = (array.data.ptr for array in (input, weight, bias, output, workspace))
        sequence.enqueue(cupy.cuda.get_current_stream().ptr, *operands)
        cupy.cuda.runtime.deviceSynchronize()
        count += 1
    print(f"launched {count} configurations", flush=True)


if __name__ == "__main__":
    sys.exit(main())
