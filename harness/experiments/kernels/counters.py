"""python -m harness.experiments counters: Nsight Compute's counters of auto, on the cases furthest from the floor.

The cases are found in results/DEVICE/paper. Prints a table and writes results/DEVICE/profile/counters.csv, and a report
into environment.json beside it. Kernels run one at a time, without the overlap that a sweep has. Needs a GPU, `ncu` on
the PATH, and the right to read counters.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

import cuconv
from cuconv.algorithms import ALGORITHMS
from cuconv.device import DeviceSpec, device_spec
from harness import command
from harness.cases.catalogue import problem_labelled
from harness.contenders.base import Operands
from harness.errors import ResultsError, UsageError
from harness.store import environment
from harness.store.csv_file import csv_text
from harness.store.files import write_whole
from harness.store.markdown import markdown
from harness.sweep.comparisons import Results, problem_of

BATCHES, CASES_PER_BATCH = (1, 8, 64, 256), 3
OPERATIONS = "sm__ops_path_tensor_op_{}_sparsity_off.avg.pct_of_peak_sustained_elapsed"
INSTRUCTIONS = ("hgmma_src_tf32_dst_fp32", "hgmma_src_fp16", "hmma_src_tf32_dst_fp32")  # of the tensor cores
# The metrics of Nsight Compute whose sum is a column; shares are of a unit's peak while the kernel runs.
METRICS = {
    "us": ["gpu__time_duration.sum"],
    "tensor_cores": [OPERATIONS.format(instruction) for instruction in INSTRUCTIONS],
    "issue_slots": ["sm__inst_issued.avg.pct_of_peak_sustained_active"],
    "l1_and_shared": ["l1tex__throughput.avg.pct_of_peak_sustained_active"],
    "l2": ["lts__throughput.avg.pct_of_peak_sustained_elapsed"],
    "memory": ["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"],
    "occupancy": ["sm__warps_active.avg.pct_of_peak_sustained_active"],
}
COLUMNS = ("case", "algorithm", "kernel", *METRICS)
CALLS = "import sys; from harness.experiments.kernels import counters; counters.call_each(sys.argv[1:])"


def furthest(device: str, batches: Iterable[int], count: int) -> list[str]:
    """Labels HW-N-K-M-C of the `count` cases of each batch whose time is the largest multiple of their floor."""
    table = Results.read(environment.ROOT / "results" / device / "paper").compared
    table = table[table.subject == "auto"].dropna(subset=["mean_us"])
    table = table.assign(distance=table.mean_us / table.floor_us).sort_values("distance", ascending=False)
    found = [table[table.batch == batch].head(count) for batch in batches]
    return [problem_of(case).label for cases in found for case in cases.itertuples()]


def call_each(labels: Sequence[str]) -> None:
    """Call auto on each case, once to compile its kernels and once between the profiler's start and stop."""
    for label in labels:
        problem = problem_labelled(label)
        operands = Operands.random(problem, torch.Generator("cuda").manual_seed(0))
        for profiled in (False, True):
            torch.cuda.synchronize()
            if profiled:
                torch.cuda.cudart().cudaProfilerStart()
            cuconv.conv2d(operands.input, operands.weight, **problem.geometry, out=operands.output)
            torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def profiler_command(labels: Sequence[str], log: Path) -> list[str]:
    """The command line of Nsight Compute for `call_each`, with caches and clocks as they are in a sweep."""
    options = ["--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    output = ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
    metrics = ",".join(metric for metrics in METRICS.values() for metric in metrics)
    return ["ncu", *options, *output, "--metrics", metrics, sys.executable, "-c", CALLS, *labels]


def rows_of(log: str, labels: Sequence[str], spec: DeviceSpec) -> list[dict[str, str]]:
    """Rows of COLUMNS from Nsight Compute's CSV, which has a line for each kernel in order of launch.

    Raises ValueError where the text is no such CSV, or of other kernels.
    """
    lines = [line for line in log.splitlines() if line.startswith('"')]
    reader = csv.DictReader(lines)
    if "Kernel Name" not in (reader.fieldnames or ()):
        raise ValueError(log.strip().splitlines()[-1] if log.strip() else "it printed nothing")
    kernels = [row for row in reader if row["ID"]]  # the line of units has no ID
    found = []
    for label in labels:
        plan = cuconv.plan(problem_labelled(label), spec)
        launches = ALGORITHMS[plan.algorithm].launches(problem_labelled(label), plan.config)
        for launch in launches:
            counted = kernels.pop(0) if kernels else {}
            if counted.get("Kernel Name") != launch.kernel:
                raise ValueError(f"{label} launches {launch.kernel}, and it counted {counted.get('Kernel Name')}")
            sums = {name: sum(float(counted[m].replace(",", "")) for m in metrics) for name, metrics in METRICS.items()}
            figures = {name: f"{value:.2f}" for name, value in (sums | {"us": sums["us"] / 1000}).items()}
            found.append({"case": label, "algorithm": plan.algorithm, "kernel": launch.kernel} | figures)
    return found


def count(labels: Sequence[str]) -> list[dict[str, str]]:
    """Run Nsight Compute; returns rows of COLUMNS, one for each kernel. Raises ValueError where it counts nothing."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        done = subprocess.run(
            profiler_command(labels, log), cwd=environment.ROOT, capture_output=True, text=True, check=False
        )
        return rows_of(log.read_text() if log.exists() else done.stderr, labels, device_spec(0))


def write_csv(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Replace the file by one row for each kernel."""
    write_whole(path, csv_text(COLUMNS, ([row.get(column, "") for column in COLUMNS] for row in rows)))


def render(rows: Sequence[dict[str, str]]) -> str:
    """A markdown table, with shares in per cent."""
    shares = list(METRICS)[1:]
    header = ["case", "kernel", "us", *(f"{name.replace('_', ' ')}, %" for name in shares)]
    cells = [[row["case"], row["kernel"], row["us"], *(f"{float(row[s]):.0f}" for s in shares)] for row in rows]
    return markdown(header, cells, left=(0, 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, or 2 where nothing can be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.experiments counters", description="Nsight Compute's counters of auto."
    )
    parser.add_argument("--batch", type=int, nargs="+", metavar="N", default=BATCHES, help="default: 1 8 64 256")
    parser.add_argument("--cases", type=int, default=CASES_PER_BATCH, help="of each batch size (default: 3)")
    options = parser.parse_args(arguments)
    return command.exit_code("harness.experiments counters", lambda: _run(options, arguments))


def _run(options: argparse.Namespace, arguments: Sequence[str] | None) -> None:
    if options.cases < 1:
        raise UsageError(f"--cases {options.cases}: must be 1 or more")
    if not torch.cuda.is_available():
        raise UsageError("counters need an NVIDIA GPU, and torch sees none")
    if not shutil.which("ncu"):
        raise UsageError("ncu, Nsight Compute's command line, is not on the PATH: it comes with the CUDA toolkit")
    labels = _labels(environment.device_slug(), options)
    try:
        rows = count(labels)
    except ValueError as error:
        raise UsageError(f"ncu counted nothing to use: {error}") from None
    print(render(rows))
    folder = environment.results_folder("profile")
    write_csv(folder / "counters.csv", rows)
    environment.report_gpu(folder, environment.command_line("harness.experiments counters", arguments), alone=False)


def _labels(device: str, options: argparse.Namespace) -> list[str]:
    """The cases to count. Raises UsageError where no sweep of the device has them."""
    try:
        labels = furthest(device, options.batch, options.cases)
    except ResultsError as error:
        raise UsageError(f"no sweep to find the cases in ({error})") from None
    if not labels:
        batches = " ".join(map(str, options.batch))
        raise UsageError(
            f"--batch {batches}: the sweep has no time of auto there, run python -m harness.run --batch {batches}"
        )
    return labels
