"""python -m harness.host: what one call costs the host, beside torch's, on a few layers: the sweep leaves it out.

Python and driver, from the call to its return, in a process that made the same call before. All calls of all layers
take turns, round after round, so that when something else keeps the processor busy they all share it. Prints a table
and writes results/DEVICE/host/host.csv, and environment.json beside it. Needs a GPU.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

import cuconv
from cuconv.problem import ConvProblem
from harness import contenders
from harness.results import environment
from harness.contenders import Unavailable
from harness.measure.kernel_times import problem_of

# HW-N-K-M-C, as in the paper: each filter size, one kernel and two, much work for the GPU and little.
LAYERS = ("7-1-1-256-832", "7-1-3-384-192", "7-1-5-128-48", "28-1-3-512-512", "28-8-3-512-512")
ROUNDS = 20
WARM_UP_CALLS, CALLS = 10, 100  # in a round
CALLS_IN_QUEUE = 50  # before the host waits for the GPU: a full queue would make it wait within a call


@dataclass(frozen=True, slots=True)
class HostTime:
    """Median host microseconds of `calls` calls; output: whether a call allocates it ("new") or it is "given"."""

    layer: str
    provider: str
    algorithm: str
    output: str
    calls: int
    median_us: float


def times_us(call: Callable[[], object], synchronize: Callable[[], None]) -> list[float]:
    """Host microseconds of a round's calls; synchronize waits for the GPU, between calls."""
    for _ in range(WARM_UP_CALLS):
        call()
    seconds = []
    for number in range(CALLS):
        if number % CALLS_IN_QUEUE == 0:
            synchronize()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    synchronize()
    return [1e6 * one for one in seconds]


def calls_of(problem: ConvProblem, device: str) -> dict[tuple[str, str, str], Callable[[], torch.Tensor]]:
    """(provider, algorithm, output) -> the call that is timed; all on the same tensors."""
    x, weight = torch.randn(problem.input_shape, device=device), torch.randn(problem.weight_shape, device=device)
    out = torch.empty(problem.output_shape, device=device)
    padding = problem.pad_h
    return {
        ("cuconv", "auto", "new"): lambda: cuconv.conv2d(x, weight, padding=padding),
        ("cuconv", "auto", "given"): lambda: cuconv.conv2d(x, weight, padding=padding, out=out),
        ("cuconv", "two_stage", "new"): lambda: cuconv.conv2d(x, weight, padding=padding, algorithm="two_stage"),
        ("torch", "default", "new"): lambda: F.conv2d(x, weight, padding=padding),
    }


def measure(layers: Iterable[str], device: str, synchronize: Callable[[], None]) -> list[HostTime]:
    """Every call of every layer, without gradients."""
    with torch.no_grad():
        calls = {(layer, *key): call for layer in layers for key, call in calls_of(problem_of(layer), device).items()}
        times: dict[tuple[str, ...], list[float]] = {key: [] for key in calls}
        for _ in range(ROUNDS):
            for key, call in calls.items():
                times[key] += times_us(call, synchronize)
    return [HostTime(*key, len(found), median(found)) for key, found in times.items()]


def render(rows: Sequence[HostTime]) -> str:
    """Markdown: a line for each layer, a column for each kind of call."""
    kinds = list(dict.fromkeys((row.provider, row.algorithm, row.output) for row in rows))
    lines = [["host us, HW-N-K-M-C", *(f"{' '.join(kind[:2])}, output {kind[2]}" for kind in kinds)]]
    lines.append(["---", *("---:" for _ in kinds)])
    for layer in dict.fromkeys(row.layer for row in rows):
        lines.append([layer, *(f"{row.median_us:.2f}" for row in rows if row.layer == layer)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_csv(path: Path, rows: Sequence[HostTime]) -> None:
    """One row for each layer and kind of call."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(HostTime)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**asdict(row), "median_us": f"{row.median_us:.9g}"} for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 2 where nothing can be measured."""
    argparse.ArgumentParser(prog="python -m harness.host", description="Host time of a warm call.").parse_args(
        arguments
    )
    try:
        contenders.load("cuconv")
    except Unavailable as reason:
        print(f"harness.host: {reason}", file=sys.stderr)
        return 2
    rows = measure(LAYERS, "cuda", torch.cuda.synchronize)
    print(render(rows))
    folder = environment.ROOT / "results" / environment.device_slug() / "host"
    write_csv(folder / "host.csv", rows)
    environment.report_gpu(folder, environment.command_line("harness.host", arguments), alone=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
