"""python -m harness kernels: what each kernel of a call costs, on cases of the paper.

By default torch's profiler times each kernel on the cases of the paper's tables 3 to 5. With `--counters`, Nsight
Compute measures how busy the kernels of auto keep each unit of the GPU. Its cases are those of the sweep in
results/DEVICE/paper whose time is the largest multiple of a yardstick. It runs kernels one at a time, without the
overlap of a sweep.

Prints tables, and writes CSV files and environment.json into results/DEVICE/profile. Needs a GPU; counters also need
`ncu` on the PATH, and the right to read counters.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import cuconv
from cuconv.algorithms import ALGORITHMS
from cuconv.device import DeviceSpec, device_spec
from cuconv.runtime.background import waiting
from harness.cases.catalogue import LABELS, problem_labelled
from harness.contenders.base import Contender, NotRunnable, Operands, load, prepare_within
from harness.contenders.registry import CLASSIC_ALGORITHMS
from harness.errors import ResultsError, UsageError
from harness.experiment import Experiment
from harness.experiments.kernels.rows import COUNTERS, TIMES, KernelCounters, KernelTime
from harness.experiments.kernels.table import TABLES, counters_table, times_table
from harness.isolation import Begins, Measure
from harness.stopwatch import profiler
from harness.store import environment
from harness.sweep.comparisons import Results, problem_of

COMPARED = {"cudnn": CLASSIC_ALGORITHMS, "cuconv": ("two_stage", "auto")}  # the lines of a table, in order
WORKSPACE_LIMIT = 1 << 30  # bytes, the paper's
CALLS = 20
ARGUMENTS_SHOWN = 48  # characters of a kernel's template arguments

BATCHES, CASES_PER_BATCH = (1, 8, 64, 256), 3
OPERATIONS = "sm__ops_path_tensor_op_{}_sparsity_off.avg.pct_of_peak_sustained_elapsed"
INSTRUCTIONS = ("hgmma_src_tf32_dst_fp32", "hgmma_src_fp16", "hmma_src_tf32_dst_fp32")  # the tensor cores'
# The metrics of Nsight Compute whose sum is a column; shares are of a unit's peak while the kernel runs.
METRICS = {
    "us": ["gpu__time_duration.sum"],  # in ns
    "tensor_cores": [OPERATIONS.format(instruction) for instruction in INSTRUCTIONS],
    "issue_slots": ["sm__inst_issued.avg.pct_of_peak_sustained_active"],
    "l1_and_shared": ["l1tex__throughput.avg.pct_of_peak_sustained_active"],
    "l2": ["lts__throughput.avg.pct_of_peak_sustained_elapsed"],
    "memory": ["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"],
    "occupancy": ["sm__warps_active.avg.pct_of_peak_sustained_active"],
}
PROFILED = "import sys; from harness.experiments.kernels import measure; measure.call_each(sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration of a table of the paper: a layer."""

    table: int
    name: str

    def __str__(self) -> str:
        return f"table {self.table}, {self.name}: {TABLES[self.table][self.name]}"


def kernel_times(
    case: Configuration, contenders: Mapping[str, Contender], broken: Collection[Begins] = ()
) -> Iterator[Begins | KernelTime]:
    """The kernels of each algorithm; those that cannot run, or are in `broken`, are left out.

    Raises UsageError where the profiler records nothing.
    """
    problem = problem_labelled(TABLES[case.table][case.name])
    operands = Operands.random(problem, torch.Generator("cuda").manual_seed(0))
    for provider, contender in contenders.items():
        offers = {offer.algorithm: offer for offer in contender.offers(problem, operands)}
        for algorithm in (name for name in COMPARED[provider] if name in offers):
            if (begins := Begins(provider, algorithm)) in broken:
                continue
            yield begins
            try:
                call = prepare_within(offers[algorithm], WORKSPACE_LIMIT).call
                launches = profiler.kernels(call, CALLS)
            except NotRunnable:
                continue
            if not launches:
                raise UsageError("no kernel was recorded: check that this user may profile the GPU (CUPTI)")
            for kernel, us in mean_times(launches, CALLS).items():
                yield KernelTime(case.table, case.name, provider, algorithm, kernel, CALLS, us)


def mean_times(launches: Sequence[tuple[str, float]], calls: int) -> dict[str, float]:
    """The mean microseconds per call of each kernel, in order of launch; launches: name and microseconds of each."""
    totals: dict[str, float] = {}
    for name, us in launches:
        totals[short_name(name)] = totals.get(short_name(name), 0.0) + us
    return {name: total / calls for name, total in totals.items()}


def short_name(kernel: str) -> str:
    """A kernel's name without return type and parameters, and with its first template arguments alone."""
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for at, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and not depth:
            name = name[:at].strip()
            break
    head, _, arguments = name.partition("<")
    return f"{head}<{arguments[:ARGUMENTS_SHOWN]}...>" if len(arguments) > ARGUMENTS_SHOWN + len(">") else name


def furthest(device: str) -> list[str]:
    """Labels HW-N-K-M-C: for each batch size, the cases whose time is the largest multiple of a yardstick.

    Raises ResultsError where the paper's sweep has no time of auto on the device.
    """
    table = Results.read(environment.ROOT / "results" / device / "paper").compared
    table = table[table.subject == "auto"].dropna(subset=["mean_us"])
    table = table.assign(distance=table.mean_us / table.yardstick_us).sort_values("distance", ascending=False)
    found = [table[table.batch == batch].head(CASES_PER_BATCH) for batch in BATCHES]
    if labels := [problem_of(case).label for cases in found for case in cases.itertuples()]:
        return labels
    raise ResultsError(f"results/{device}/paper has no time of auto at batch {BATCHES}: run 'python -m harness.run'")


def call_each(labels: Sequence[str]) -> None:
    """Call auto on each case, once to compile its kernels and once between the profiler's start and stop."""
    for label in labels:
        problem = problem_labelled(label)
        operands = Operands.random(problem, torch.Generator("cuda").manual_seed(0))
        for profiled in (False, True):
            torch.cuda.synchronize()
            if profiled:
                torch.cuda.cudart().cudaProfilerStart()
            with waiting():
                cuconv.conv2d(operands.input, operands.weight, **problem.geometry, out=operands.output)
            torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def counters(labels: Sequence[str]) -> list[KernelCounters]:
    """A row for each kernel of auto; caches and clocks are as they are in a sweep.

    Raises UsageError where Nsight Compute counts nothing.
    """
    metrics = ",".join(metric for metrics in METRICS.values() for metric in metrics)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        options = ["--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
        output = ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
        line = ["ncu", *options, *output, "--metrics", metrics, sys.executable, "-c", PROFILED, *labels]
        done = subprocess.run(line, cwd=environment.ROOT, capture_output=True, text=True, check=False)
        return counters_in(log.read_text() if log.exists() else done.stderr, labels, device_spec(0))


def counters_in(log: str, labels: Sequence[str], spec: DeviceSpec) -> list[KernelCounters]:
    """The rows of a log of Nsight Compute, which has a line for each kernel in order of launch.

    Raises UsageError where the log is of something else.
    """
    lines = csv.DictReader(line for line in log.splitlines() if line.startswith('"'))
    counted = [line for line in lines if line.get("ID")]  # the line of units has none
    expected = [(label, *launch) for label in labels for launch in _launches(label, spec)]
    kernels = [line.get("Kernel Name") for line in counted]
    if kernels != [kernel for *_, kernel in expected]:
        told = f"it counted {', '.join(map(str, kernels))}" if kernels else (log.strip() or "no output").split("\n")[-1]
        raise UsageError(f"ncu did not count the kernels of auto on {', '.join(labels)}: {told}")
    return [_counted(*launch, line) for launch, line in zip(expected, counted, strict=True)]


def _counted(case: str, algorithm: str, kernel: str, line: Mapping[str, str]) -> KernelCounters:
    sums = {name: sum(float(line[metric].replace(",", "")) for metric in metrics) for name, metrics in METRICS.items()}
    return KernelCounters(case, algorithm, kernel, **{**sums, "us": sums["us"] / 1000})


def _launches(label: str, spec: DeviceSpec) -> list[tuple[str, str]]:
    """The algorithm and the kernel of each launch of auto, in order."""
    problem = problem_labelled(label)
    plan = cuconv.plan(problem, spec)
    return [(plan.algorithm, launch.kernel) for launch in ALGORITHMS[plan.algorithm].launches(problem, plan.config)]


def _cases(options: argparse.Namespace) -> list[Any]:
    """The configurations of the tables, or all of auto's cases as one, which Nsight Compute counts in one process."""
    if options.counters:
        return ["counters"]
    return [Configuration(table, name) for table, configurations in TABLES.items() for name in configurations]


def _plan(options: argparse.Namespace, cases: Sequence[Any]) -> str:
    if options.counters:
        return "counters of auto on the cases of results/DEVICE/paper that take the largest multiples of a yardstick"
    return "\n".join([LABELS, *map(str, cases)])


def _check(options: argparse.Namespace, cases: Sequence[Any]) -> None:
    if options.counters and not shutil.which("ncu"):
        raise UsageError("ncu, Nsight Compute's command line, is not on the PATH: it comes with the CUDA toolkit")


def _begin(options: argparse.Namespace, process: object) -> Measure:
    contenders = {"cudnn": load("cudnn"), "cuconv": load("cuconv")}
    if options.counters:
        return lambda task: counters(furthest(environment.device_slug()))
    return lambda task: kernel_times(task[0], contenders, task[1])


def _summary(options: argparse.Namespace, folder: Path) -> str:
    if options.counters:
        return counters_table(COUNTERS.read(folder / COUNTERS.name))
    return "\n\n".join(times_table(table.read(folder / table.name)) for table in TIMES.values())


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--counters", action="store_true", help="instead, Nsight Compute's counters of auto's kernels")


EXPERIMENT = Experiment(
    name="kernels",
    about="Kernel times of the paper's tables 3 to 5.",
    what="kernels",
    tables=(COUNTERS, *TIMES.values()),
    cases=_cases,
    check=_check,
    plan=_plan,
    begin=_begin,
    summary=_summary,
    add_options=_add_options,
)
main = EXPERIMENT.main
