"""python -m harness copies: times of plain copies on the device, the measure of memory-bound layers.

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
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import pandas as pd
import torch

from cuconv.core.problem import FLOAT_BYTES
from harness.errors import UsageError
from harness.experiment import Experiment
from harness.experiments.copies.rows import BANDWIDTH, Copy, read
from harness.isolation import Lacks
from harness.stopwatch import timing
from harness.stopwatch.graph import HostTooSlow
from harness.store.markdown import markdown
from harness.store.times import RUNS

MIB, PAGE = 1 << 20, 1 << 12
WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "copy": lambda source, target: target.copy_(source),
    "multiply": lambda source, target: torch.mul(source, 1.0, out=target),
}
# Bytes read and written, 1 MiB to 4 GiB by factors of sqrt(2): the paper's largest case, 224-256-3-64-3, moves 3.2 GiB.
SIZES = tuple(PAGE * round(MIB / PAGE * 2 ** (step / 2)) for step in range(25))


@dataclass(frozen=True, slots=True)
class Size:
    """A case: a size of the copies."""

    bytes: int

    def __str__(self) -> str:
        return f"{self.bytes / MIB:.1f} MiB, read and written together"


def measurer(device: torch.device, sizes: Sequence[int] = SIZES) -> Callable[[int], Copy]:
    """A function that measures copies of a number of bytes, read and written together, one of `sizes`."""
    source = torch.randn(max(sizes) // (2 * FLOAT_BYTES), device=device)
    target = torch.empty_like(source)

    def measure(size: int) -> Copy:
        count = size // (2 * FLOAT_BYTES)
        found = []
        for way, copy in WAYS.items():
            call = partial(copy, source[:count], target[:count])
            call()
            found.append((way, timing.measure(call, RUNS, device).runs_us))
        return Copy(size, *min(found, key=lambda one: fmean(one[1])))

    return measure


def render(copies: pd.DataFrame) -> str:
    """A markdown table: MiB moved, microseconds, TB/s."""
    rows = [
        [f"{moved / MIB:.1f}", f"{mean_us:.2f}", f"{1e-6 * moved / mean_us:.2f}"]
        for moved, mean_us in zip(copies.bytes.to_list(), copies.mean_us.to_list(), strict=True)
    ]
    return markdown(["MiB, both ways", "us", "TB/s"], rows, left=())


def _begin(options: argparse.Namespace, process: object) -> Callable[[Any], list[Copy | Lacks]]:
    try:
        measure = measurer(torch.device("cuda", torch.cuda.current_device()))
    except torch.OutOfMemoryError:
        needed = max(SIZES) / 2**30
        raise UsageError(f"copies need {needed:.0f} GiB of the GPU's memory: end what else uses it") from None

    def of_case(task: tuple[Size, Any]) -> list[Copy | Lacks]:
        try:
            return [measure(task[0].bytes)]
        except (timing.TooSlow, HostTooSlow) as reason:
            return [Lacks(f"{task[0]}: {reason}")]

    return of_case


EXPERIMENT = Experiment(
    name="copies",
    about="Times of plain copies on the device.",
    what="copies",
    tables=(BANDWIDTH,),
    cases=lambda options: [Size(size) for size in SIZES],
    begin=_begin,
    summary=lambda options, folder: f"{render(read(folder / BANDWIDTH.name))}\nresults: {folder}",
)
main = EXPERIMENT.main
