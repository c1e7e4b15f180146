"""python -m harness.experiments kernels: device time kernel by kernel, on the cases of the paper's tables 3 to 5.

Prints the tables in the paper's shape and writes results/DEVICE/profile/table_N.csv, and a report into environment.json
beside them. Needs a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from harness import command, progress
from harness.cases.catalogue import problem_labelled
from harness.contenders.base import Contender, NotRunnable, Offer, Operands, Unavailable, load
from harness.contenders.registry import CLASSIC_ALGORITHMS, PROVIDERS, shown
from harness.errors import UsageError
from harness.store import environment
from harness.store.csv_file import csv_text
from harness.store.files import write_whole
from harness.store.markdown import markdown

# Labels HW-N-K-M-C, as in the paper.
TABLES = {
    3: {"A": "7-1-1-256-832", "B": "14-1-1-1024-256", "C": "27-1-1-256-64"},
    4: {"A": "7-1-3-384-192", "B": "13-1-3-384-384"},
    5: {"A": "7-1-5-128-48", "B": "7-8-5-128-48"},
}
ALGORITHMS = {"cudnn": CLASSIC_ALGORITHMS, "cuconv": ("two_stage", "auto")}
WORKSPACE_LIMIT = 1 << 30  # bytes, the paper's
WARM_UP_CALLS, CALLS = 5, 20
NAME_LENGTH = 60


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel of an algorithm: mean device microseconds of all its launches in one of `calls` convolutions."""

    table: int
    configuration: str
    provider: str
    algorithm: str
    kernel: str
    calls: int
    mean_us: float


def short_name(kernel: str) -> str:
    """A kernel's name without return type and parameters, and with no more template arguments than fit a table."""
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for at, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and not depth:
            name = name[:at].strip()
            break
    if len(name) <= NAME_LENGTH or "<" not in name:
        return name
    head, _, rest = name.partition("<")
    kept, *others = rest.removesuffix(">").split(", ")
    for argument in others:
        if len(f"{head}<{kept}, {argument}, ...>") > NAME_LENGTH:
            return f"{head}<{kept}, ...>"
        kept += f", {argument}"
    return name


def mean_times(launches: Iterable[tuple[str, float]], calls: int) -> dict[str, float]:
    """The mean microseconds per call of each kernel, in order of launch; launches: name and microseconds of each."""
    totals: dict[str, float] = {}
    for name, duration in launches:
        name = short_name(name)
        totals[name] = totals.get(name, 0.0) + duration
    return {name: total / calls for name, total in totals.items()}


def render(table: int, rows: Sequence[KernelTime]) -> str:
    """Markdown in the paper's shape: a line for each kernel, a total for each algorithm, the fastest total bold."""
    columns = TABLES[table]
    totals: dict[tuple[str, str], dict[str, float]] = {}
    kernels: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row in rows:
        key = (row.provider, row.algorithm)
        sums = totals.setdefault(key, {})
        sums[row.configuration] = sums.get(row.configuration, 0.0) + row.mean_us
        kernels.setdefault(key, {}).setdefault(row.kernel, {})[row.configuration] = row.mean_us
    measured = {name for sums in totals.values() for name in sums}
    fastest = {name: min(sums[name] for sums in totals.values() if name in sums) for name in measured}

    body = []
    for (provider, algorithm), names in kernels.items():
        label = shown(provider, algorithm)
        for kernel, times in names.items():
            body.append([label, f"`{kernel}`", *(_cell(times.get(name)) for name in columns)])
            label = ""
        sums = totals[provider, algorithm]
        body.append(["", "*Total*", *(_cell(sums.get(name), sums.get(name) == fastest.get(name)) for name in columns)])
    size = problem_labelled(columns["A"]).kh
    title = f"Table {table}: kernel time (us) with {size}x{size} filters"
    cases = ", ".join(f"{name}: {label}" for name, label in columns.items())
    return "\n\n".join([title, markdown(["Algorithm", "GPU kernel", *columns], body, left=(0, 1)), cases])


def _cell(time_us: float | None, bold: bool = False) -> str:
    if time_us is None:
        return ""
    return f"**{time_us:.2f}**" if bold else f"{time_us:.2f}"


def write_csv(path: Path, rows: Sequence[KernelTime]) -> None:
    """One row for each kernel, times with nine significant digits."""
    lines = ({**asdict(row), "mean_us": f"{row.mean_us:.9g}"}.values() for row in rows)
    write_whole(path, csv_text([field.name for field in fields(KernelTime)], lines))


def kernel_times(call: Callable[[], torch.Tensor]) -> dict[str, float]:
    """Mean device microseconds per call of each kernel that a call launches; raises what the call raises."""
    _record(call, WARM_UP_CALLS)  # recorded too: the profiler loses launches when it starts for the first time
    return mean_times(_record(call, CALLS), CALLS)


def _record(call: Callable[[], torch.Tensor], calls: int) -> list[tuple[str, float]]:
    """The kernels and memory operations of some calls in order of launch: (name, device microseconds)."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    device = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    device.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us()) for event in device]


def measure(table: int, takers: Sequence[Contender]) -> list[KernelTime]:
    """The kernel times of ALGORITHMS on every case of a table; algorithms that cannot run are left out."""
    rows = []
    for configuration, label in progress.counted(TABLES[table].items(), f"table {table}"):
        problem = problem_labelled(label)
        operands = Operands.random(problem, torch.Generator("cuda").manual_seed(0))
        for taker in takers:
            for offer in _ordered(taker.offers(problem, operands, WORKSPACE_LIMIT)):
                try:
                    times = kernel_times(offer.prepare().call)
                except NotRunnable:
                    continue
                key = (table, configuration, offer.provider, offer.algorithm)
                rows += [KernelTime(*key, kernel, CALLS, mean_us) for kernel, mean_us in times.items()]
    return rows


def _ordered(offers: Sequence[Offer]) -> list[Offer]:
    """The offers that the tables show, in the order of ALGORITHMS."""
    by_name = {offer.algorithm: offer for offer in offers}
    listed = ALGORITHMS[offers[0].provider]
    return [by_name[name] for name in listed if name in by_name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, or 2 where nothing can be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.experiments kernels", description="Kernel times of the paper's tables."
    )
    tables = sorted(TABLES)
    parser.add_argument("--table", type=int, nargs="+", choices=tables, default=tables, help="default: all")
    chosen = parser.parse_args(arguments).table
    return command.exit_code("harness.experiments kernels", lambda: _run(chosen, arguments))


def _run(tables: Sequence[int], arguments: Sequence[str] | None) -> None:
    if not torch.cuda.is_available():
        raise UsageError("kernel times need an NVIDIA GPU, and torch sees none")
    takers = []
    for provider in ALGORITHMS:
        try:
            takers.append(load(provider))
        except Unavailable as reason:
            print(f"without {PROVIDERS[provider].label}: {reason}", file=sys.stderr)
    if not takers:
        raise UsageError("no contender is left to measure")

    folder = environment.results_folder("profile")
    for table in tables:
        rows = measure(table, takers)
        if not rows:
            raise UsageError("no kernel was recorded: check that this user may profile the GPU (CUPTI)")
        print(render(table, rows) + "\n")
        write_csv(folder / f"table_{table}.csv", rows)
        if table == tables[0]:  # once, and at once: a later table may fail
            command_line = environment.command_line("harness.experiments kernels", arguments)
            environment.report_gpu(folder, command_line, alone=False)
