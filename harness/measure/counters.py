"""python -m harness.counters: Nsight Compute's counters of what auto launches, on the cases furthest from their floor.

Which those are is in results/DEVICE/paper. Prints a table and writes results/DEVICE/profile/counters.csv, and a report
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
from harness.results import environment
from harness.results.comparisons import compare, problem_of
from harness.report.markdown import markdown
from harness.measure.kernel_times import problem_of as problem_named
from harness.results.records import ResultsError, read

BATCHES, CASES_PER_BATCH = (1, 8, 64, 256), 3
OPERATIONS = "sm__ops_path_tensor_op_{}_sparsity_off.avg.pct_of_peak_sustained_elapsed"
INSTRUCTIONS = ("hgmma_src_tf32_dst_fp32", "hgmma_src_fp16", "hmma_src_tf32_dst_fp32")  # of the tensor cores
# Column -> Nsight Compute's metrics, of which it is the sum; a share is of what the unit can do while the kernel runs.
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
CALLS = "import sys; from harness import counters; counters.call_each(sys.argv[1:])"


def furthest(device: str, batches: Iterable[int], count: int) -> list[str]:
    """Labels HW-N-K-M-C of the `count` cases of each batch whose time is the largest multiple of their floor."""
    table = compare(read(environment.ROOT / "results" / device / "paper" / "measurements.csv"), device)
    table = table[table.subject == "auto"].dropna(subset=["mean_us"])
    table = table.assign(distance=table.mean_us / table.floor_us).sort_values("distance", ascending=False)
    found = [table[table.batch == batch].head(count) for batch in batches]
    return [problem_of(case).label for cases in found for case in cases.itertuples()]


def call_each(labels: Sequence[str]) -> None:
    """One call of auto on each case between the profiler's start and stop; what it launches is compiled before."""
    for label in labels:
        problem = problem_named(label)
        generator = torch.Generator("cuda").manual_seed(0)
        x = torch.randn(problem.input_shape, generator=generator, device="cuda")
        weight = torch.randn(problem.weight_shape, generator=generator, device="cuda")
        out = torch.empty(problem.output_shape, device="cuda")
        for profiled in (False, True):
            torch.cuda.synchronize()
            if profiled:
                torch.cuda.cudart().cudaProfilerStart()
            cuconv.conv2d(x, weight, padding=(problem.pad_h, problem.pad_w), out=out)
            torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def command(labels: Sequence[str], log: Path) -> list[str]:
    """Nsight Compute's, for `call_each`: caches and clocks as they are in a sweep."""
    options = ["--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    output = ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
    metrics = ",".join(metric for metrics in METRICS.values() for metric in metrics)
    return ["ncu", *options, *output, "--metrics", metrics, sys.executable, "-c", CALLS, *labels]


def rows_of(log: str, labels: Sequence[str], spec: DeviceSpec) -> list[dict[str, str]]:
    """Nsight Compute's CSV, a kernel a line in order of launch -> rows of COLUMNS; ValueError where it is none."""
    lines = [line for line in log.splitlines() if line.startswith('"')]
    reader = csv.DictReader(lines)
    if "Kernel Name" not in (reader.fieldnames or ()):
        raise ValueError(log.strip().splitlines()[-1] if log.strip() else "it printed nothing")
    kernels = [row for row in reader if row["ID"]]  # the line of units has none
    found = []
    for label in labels:
        plan = cuconv.plan(problem_named(label), spec)
        launches = ALGORITHMS[plan.algorithm].launches(problem_named(label), plan.config, aligned=True, relu=False)
        for launch in launches:
            counted = kernels.pop(0) if kernels else {}
            if counted.get("Kernel Name") != launch.kernel:
                raise ValueError(f"{label} launches {launch.kernel}, and it counted {counted.get('Kernel Name')}")
            sums = {name: sum(float(counted[m].replace(",", "")) for m in metrics) for name, metrics in METRICS.items()}
            figures = {name: f"{value:.2f}" for name, value in (sums | {"us": sums["us"] / 1000}).items()}
            found.append({"case": label, "algorithm": plan.algorithm, "kernel": launch.kernel} | figures)
    return found


def count(labels: Sequence[str]) -> list[dict[str, str]]:
    """Rows of COLUMNS, a kernel each, by Nsight Compute; ValueError where it does not count them."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        done = subprocess.run(command(labels, log), cwd=environment.ROOT, capture_output=True, text=True, check=False)
        return rows_of(log.read_text() if log.exists() else done.stderr, labels, device_spec(0))


def write_csv(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """A row a kernel; replaces the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def render(rows: Sequence[dict[str, str]]) -> str:
    """A markdown table; shares in per cent."""
    shares = list(METRICS)[1:]
    header = ["case", "kernel", "us", *(f"{name.replace('_', ' ')}, %" for name in shares)]
    cells = [[row["case"], row["kernel"], row["us"], *(f"{float(row[s]):.0f}" for s in shares)] for row in rows]
    return markdown(header, cells, left=(0, 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 2 where nothing can be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.counters", description="Nsight Compute's counters of auto."
    )
    parser.add_argument("--batch", type=int, nargs="+", metavar="N", default=BATCHES, help="default: 1 8 64 256")
    parser.add_argument("--cases", type=int, default=CASES_PER_BATCH, help="of each batch size (default: 3)")
    options = parser.parse_args(arguments)
    if options.cases < 1:
        return _fail(f"--cases {options.cases}: must be 1 or more")
    if not torch.cuda.is_available():
        return _fail("counters need an NVIDIA GPU, and torch sees none")
    if not shutil.which("ncu"):
        return _fail("ncu, Nsight Compute's command line, is not on the PATH: it comes with the CUDA toolkit")
    device = environment.device_slug()
    try:
        labels = furthest(device, options.batch, options.cases)
    except ResultsError as error:
        return _fail(f"no sweep to find the cases in ({error}): run python -m harness.run")
    if not labels:
        batches = " ".join(map(str, options.batch))
        return _fail(
            f"--batch {batches}: the sweep has no time of auto there, run python -m harness.run --batch {batches}"
        )
    try:
        rows = count(labels)
    except ValueError as error:
        return _fail(f"ncu counted nothing to use: {error}")
    print(render(rows))
    folder = environment.ROOT / "results" / device / "profile"
    write_csv(folder / "counters.csv", rows)
    environment.report_gpu(folder, environment.command_line("harness.counters", arguments), alone=False)
    return 0


def _fail(reason: str) -> int:
    print(f"harness.counters: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
