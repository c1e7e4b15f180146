"""python -m harness.experiments copies: times of plain copies on the device, the measure of memory-bound layers.

torch copies one contiguous float32 array to another in two ways: with the driver's copy, and with a kernel that
multiplies by one. Both are timed as every algorithm is, and the faster counts: at some sizes the driver's copy takes
1.5 times as long. Bytes are those read and those written. The bandwidth depends on them, because a launch, the ramp and
the tail of the kernel and the contents of the caches count more for small copies. So a layer is compared with a copy of
as many bytes. Prints a table and writes results/DEVICE/bandwidth/bandwidth.csv and the environment.json beside it.
Needs a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import pandas as pd
import torch

from cuconv.core.problem import FLOAT_BYTES
from harness import command, progress
from harness.errors import UsageError
from harness.experiments.copies.rows import BANDWIDTH, COLUMNS
from harness.stopwatch import timing
from harness.store import environment
from harness.store.markdown import markdown
from harness.store.times import RUNS

Copy = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of the first to the second

MIB, PAGE = 1 << 20, 1 << 12
WAYS: dict[str, Copy] = {
    "copy": lambda source, target: target.copy_(source),
    "multiply": lambda source, target: torch.mul(source, 1.0, out=target),
}
# Bytes read and written, 1 MiB to 4 GiB by factors of sqrt(2): the paper's largest case, 224-256-3-64-3, moves 3.2 GiB.
SIZES = tuple(PAGE * round(MIB / PAGE * 2 ** (step / 2)) for step in range(25))


def measure(device: torch.device, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """A row of COLUMNS for each size: the faster way to copy, and its microseconds.

    sizes: the bytes that a copy reads and writes together.
    """
    source = torch.randn(max(sizes) // (2 * FLOAT_BYTES), device=device)
    target = torch.empty_like(source)
    rows: list[list[object]] = []
    for size in progress.counted(sizes, "copies"):
        count = size // (2 * FLOAT_BYTES)
        found = [(way, _time_us(copy, source[:count], target[:count])) for way, copy in WAYS.items()]
        way, runs_us = min(found, key=lambda one: fmean(one[1]))
        rows.append([size, way, *runs_us, fmean(runs_us)])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _time_us(copy: Copy, source: torch.Tensor, target: torch.Tensor) -> tuple[float, ...]:
    call = partial(copy, source, target)
    call()
    return timing.measure(call, RUNS, source.device).runs_us


def render(copies: pd.DataFrame) -> str:
    """A markdown table: MiB moved, microseconds, TB/s."""
    rows = [
        [f"{moved / MIB:.1f}", f"{mean_us:.2f}", f"{1e-6 * moved / mean_us:.2f}"]
        for moved, mean_us in zip(copies.bytes.to_list(), copies.mean_us.to_list(), strict=True)
    ]
    return markdown(["MiB, both ways", "us", "TB/s"], rows, left=())


def _run(options: argparse.Namespace) -> None:
    device = environment.current_gpu("copies")
    try:
        copies = measure(device)
    except torch.OutOfMemoryError:
        needed = max(SIZES) / 2**30
        raise UsageError(f"copies need {needed:.0f} GiB of the GPU's memory: end what else uses it") from None
    print(render(copies))
    path = BANDWIDTH.write(environment.results_folder(BANDWIDTH.folder), copies.itertuples(index=False))
    environment.report_gpu(path.parent, options.typed, alone=True)
    print(f"written: {path}")


main = command.program("harness.experiments copies", "Times of plain copies on the device.", _run)
