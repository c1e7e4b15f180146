"""python -m tests.gpu.sanitize: every algorithm under compute-sanitizer's memcheck and racecheck, on a GPU.

Each tool runs this module again with --launch, which launches configurations of every algorithm in both precisions on
small problems: filters of 1x1 to 11x11, odd shapes, strides, dilations and groups, blocks alone and in clusters, every
other one with a residual, every third one with prepared weights, every fifth one, where the algorithm does so, into a
slice of channels. For each tool the number of configurations and of
errors is printed. The exit code is 1 where there was an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import Algorithm, CallOptions, Configuration
from cuconv.core.activation import RELU
from cuconv.core.launch import Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec, device_spec
from cuconv.runtime.compiler import cubin
from cuconv.runtime.flags import SLOT_BYTES
from cuconv.runtime.launch_sequence import LaunchSequence
from cuconv.select import LaunchPlan, launches_of

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
    ConvProblem(2, 36, 13, 9, 40, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(2, 68, 9, 8, 36, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(1, 3, 31, 30, 20, 11, 11, 2, 2, stride_h=4, stride_w=4),
    ConvProblem(1, 36, 12, 11, 24, 3, 3, 2, 2, dilation_h=2, dilation_w=2, groups=4),
    ConvProblem(2, 30, 14, 11, 30, 3, 3, 1, 1, groups=30),
    ConvProblem(1, 24, 7, 7, 48, 5, 5, 2, 2, stride_h=2, stride_w=2, groups=24),
    ConvProblem(3, 200, 1, 1, 50, 1, 1),
    # Layers for the kernels of windows in half precision.
    ConvProblem(1, 3, 17, 16, 20, 7, 7, 3, 3, stride_h=2, stride_w=2),
    ConvProblem(2, 1, 9, 16, 8, 3, 3),
    ConvProblem(2, 24, 11, 9, 24, 3, 3, 1, 1, groups=24),
)
Job = tuple[str, Algorithm, ConvProblem, Configuration]


def main(arguments: list[str] | None = None) -> int:
    """Run the tools, or with --launch the kernels themselves; returns the exit code."""
    description = __doc__.split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.sanitize", description=description, allow_abbrev=False)
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


def slice_channels(problem: ConvProblem) -> int:
    """The channels of the tensor that an output is a slice of, from its first channel on."""
    return problem.m + 4


def slice_elements(problem: ConvProblem) -> int:
    """The elements from the first to the last one of an output that is such a slice."""
    p, channels = problem, slice_channels(problem)
    if p.is_channels_last:
        return (p.n * p.out_pixels - 1) * channels + p.m
    return ((p.n - 1) * channels + p.m) * p.out_pixels


def _options(number: int, job: Job) -> CallOptions:
    """The options of a job: a slice as output where 5 divides its number, or else a residual where that is odd."""
    _, algorithm, problem, _ = job
    sliced = number % 5 == 0 and algorithm.writes_slices
    channels = slice_channels(problem) if sliced else None
    return CallOptions(activation=RELU, residual=number % 2 == 1 and not sliced, output_channels=channels)


def _launches(tool: str, number: int, job: Job) -> list[Sequence[Launch]]:
    """The launches of a job, in sequences of which each waits for the one before; by threes with prepared weights."""
    name, algorithm, problem, config = job
    plan, options = LaunchPlan(name, config), _options(number, job)
    once = algorithm.packing_launch(problem, config, options)
    if once is None or number % 3:
        sequences: list[Sequence[Launch]] = [launches_of(plan, problem, options)]
    else:
        sequences = [(once,), launches_of(plan, problem, replace(options, packed=True)) * 2]
    added = MACROS.get((tool, name), {})
    return [[replace(one, macros={**one.macros, **added}) for one in launches] for launches in sequences]


def _compile_all(algorithms: list[str]) -> None:
    """Compile ahead, side by side: under a tool it would take long."""
    from concurrent.futures import ThreadPoolExecutor

    device = device_spec(0)
    jobs = [(tool, *job) for tool in TOOLS for job in enumerate(_jobs(tool, algorithms, device))]
    launches = [one for job in jobs for launches in _launches(*job) for one in launches]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(cubin, {launch.variant(device.arch) for launch in launches}))


def _launch_all(tool: str, algorithms: list[str]) -> None:
    """Launch every job once on random data, in memory of exactly the size that it may touch."""
    import cupy
    import numpy

    device, count = device_spec(0), 0
    cupy.cuda.set_allocator(None)  # so that the tool sees the end of each array
    random = numpy.random.default_rng(0)
    for number, job in enumerate(_jobs(tool, algorithms, device)):
        name, algorithm, problem, config = job
        options = _options(number, job)
        print(f"on {name} {config} of {problem.label} in {problem.precision}", flush=True)
        element = cupy.float16 if problem.is_half else cupy.float32  # FP16 stands in for BF16, which CuPy lacks
        shapes = (problem.input_shape, problem.weight_shape)
        input, weight = (cupy.asarray(random.standard_normal(shape)).astype(element) for shape in shapes)
        bias, output = cupy.ones(problem.m, element), cupy.empty(problem.output_shape, element)
        residual = cupy.ones_like(output) if options.residual else None
        if options.output_channels is not None:
            output = cupy.empty(slice_elements(problem), element)
        workspace = cupy.empty(max(1, -(-config.workspace_bytes // FLOAT_BYTES)), cupy.float32)
        packing = algorithm.packing(problem, config)
        packed = cupy.empty(-(-packing.workspace_bytes(problem) // FLOAT_BYTES) if packing else 1, cupy.float32)
        flags = cupy.zeros(SLOT_BYTES // FLOAT_BYTES, cupy.float32)
        arrays = (input, weight, bias, output, workspace, residual, packed, flags)
        for launches in _launches(tool, number, job):
            sequence = LaunchSequence(launches, device.arch, 0)
            addresses = (0 if array is None else array.data.ptr for array in arrays)
            sequence.enqueue(cupy.cuda.get_current_stream().ptr, *addresses)
            cupy.cuda.runtime.deviceSynchronize()
        count = number + 1
    print(f"launched {count} configurations", flush=True)


if __name__ == "__main__":
    sys.exit(main())
