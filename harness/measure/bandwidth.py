"""python -m harness.bandwidth: how long plain copies on the device take, the measure of memory-bound layers.

One contiguous float32 array is copied to another by torch, with the driver's copy and with a kernel that multiplies by
one, timed as every algorithm is. The faster counts, since the driver's takes 1.5 times as long at some sizes. Bytes
count both ways, read and written. Bandwidth depends on them (a launch, the ramp and the tail count, and what is still
in the caches): a layer is to be compared with a copy of as many bytes. Prints a table and writes
results/DEVICE/bandwidth/bandwidth.csv and the environment.json beside it. Needs a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from cuconv.problem import FLOAT_BYTES
from harness.results import environment
from harness.measure import timing
from harness.report.markdown import markdown
from harness.results.records import MAX_RUNS, RUN_COLUMNS, ResultsError

FOLDER, CSV = "bandwidth", "bandwidth.csv"  # in results/DEVICE
COLUMNS = ("bytes", "way", *RUN_COLUMNS, "mean_us")
MIB, PAGE = 1 << 20, 1 << 12
WAYS = {
    "copy": lambda source, target: target.copy_(source),
    "multiply": lambda source, target: torch.mul(source, 1.0, out=target),
}
# Bytes read and written, 1 MiB to 4 GiB by factors of sqrt(2): the paper's largest case, 224-256-3-64-3, moves 3.2 GiB.
SIZES = tuple(PAGE * round(MIB / PAGE * 2 ** (step / 2)) for step in range(25))


def measure(device: torch.device, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """Microseconds of copies that read and write so many bytes together: a row of COLUMNS for each size, the faster."""
    source = torch.randn(max(sizes) // (2 * FLOAT_BYTES), device=device)
    target = torch.empty_like(source)
    rows = []
    bar_format = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed} elapsed, {remaining} left"
    for size in tqdm(sizes, desc="copies", bar_format=bar_format):
        count = size // (2 * FLOAT_BYTES)
        found = [(way, _time_us(copy, source[:count], target[:count])) for way, copy in WAYS.items()]
        way, runs_us = min(found, key=lambda one: fmean(one[1]))
        rows.append([size, way, *runs_us, fmean(runs_us)])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _time_us(copy: Callable, source: torch.Tensor, target: torch.Tensor) -> tuple[float, ...]:
    call = partial(copy, source, target)
    call()
    return timing.measure(call, MAX_RUNS, source.device).runs_us


def write(folder: Path, copies: pd.DataFrame) -> Path:
    """Replace bandwidth.csv of a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    copies.to_csv(folder / CSV, index=False, float_format="%.9g")
    return folder / CSV


def read(path: Path) -> pd.DataFrame:
    """The rows of a bandwidth.csv by size; raises ResultsError where it is missing or something else."""
    if not path.exists():
        raise ResultsError(f"{path} does not exist: measure first with 'python -m harness.bandwidth' on a GPU")
    try:
        copies = pd.read_csv(path, dtype=dict.fromkeys(COLUMNS, float) | {"way": str})
    except (ValueError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} is not readable as CSV ({error}): restore or delete it") from None
    missing = [column for column in COLUMNS if column not in copies.columns]
    if missing:
        raise ResultsError(f"{path} lacks the column {missing[0]!r}: it is no bandwidth.csv of this project")
    if not len(copies) or not (copies[["bytes", "mean_us"]] > 0).all(axis=None):
        raise ResultsError(f"{path} must have rows, with bytes and mean_us above 0: restore it or measure again")
    return copies.sort_values("bytes", ignore_index=True)


def copy_us(copies: pd.DataFrame, moved: Sequence[int]) -> np.ndarray:
    """Microseconds of copies that move so many bytes, on straight lines between the sizes measured, log over log.

    NaN below the smallest size and above the largest.
    """
    sizes, times = np.log(copies.bytes), np.log(copies.mean_us)
    return np.exp(np.interp(np.log(np.asarray(moved, dtype=float)), sizes, times, left=np.nan, right=np.nan))


def render(copies: pd.DataFrame) -> str:
    """Markdown: MiB moved, microseconds, TB/s."""
    rows = [
        [f"{row.bytes / MIB:.1f}", f"{row.mean_us:.2f}", f"{1e-6 * row.bytes / row.mean_us:.2f}"]
        for row in copies.itertuples()
    ]
    return markdown(["MiB, both ways", "us", "TB/s"], rows, left=())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 2 where nothing can be measured."""
    parser = argparse.ArgumentParser(prog="python -m harness.bandwidth", description="How long plain copies take.")
    parser.parse_args(arguments)
    if not torch.cuda.is_available():
        return _fail("copies are measured on an NVIDIA GPU, and torch sees none")
    device = torch.device("cuda", torch.cuda.current_device())
    try:
        copies = measure(device)
    except torch.OutOfMemoryError:
        return _fail(f"copies need {max(SIZES) / 2**30:.0f} GiB of the GPU's memory: end what else uses it")
    print(render(copies))
    path = write(environment.ROOT / "results" / environment.device_slug() / FOLDER, copies)
    environment.report_gpu(path.parent, environment.command_line("harness.bandwidth", arguments), alone=True)
    print(f"written: {path}")
    return 0


def _fail(reason: str) -> int:
    print(f"harness.bandwidth: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
