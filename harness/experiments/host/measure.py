"""python -m harness host: the host time of one call, beside torch's, on a few layers.

Device times, which the sweep measures, leave it out. Host time is that of Python and the driver, from the call to its
return, in a process that made the same call before. Rounds interleave all calls of all layers, so that a busy processor
slows all of them alike. Two rows more are those of first calls, as first_call.py has them. Prints a
table and writes results/DEVICE/host/host.csv, and environment.json beside it. Needs a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

import cuconv
from cuconv.core.problem import ConvProblem
from cuconv.runtime.background import waiting
from harness import progress
from harness.cases.catalogue import problem_labelled
from harness.contenders.base import Operands, load
from harness.experiment import Experiment
from harness.experiments.host import first_call
from harness.experiments.host.rows import HOST, HostTime
from harness.store.markdown import markdown

CALLS_OF_LAYERS, FIRST_CALLS = "calls of layers", "first calls"  # all calls of a kind take turns, so each is one case
# Labels HW-N-K-M-C, as in the paper: each filter size, calls of one kernel and of two, much work and little.
LAYERS = ("7-1-1-256-832", "7-1-3-384-192", "7-1-5-128-48", "28-1-3-512-512", "28-8-3-512-512")
ROUNDS = 20
WARM_UP_CALLS, CALLS = 10, 100  # in a round
CALLS_IN_QUEUE = 50  # before the host waits for the GPU, because a full queue would make it wait within a call


def times_us(call: Callable[[], object], synchronize: Callable[[], None]) -> list[float]:
    """The host microseconds of each call of a round; synchronize waits for the GPU, between calls."""
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
    """The calls to time by (provider, algorithm, output), all on the same tensors."""
    operands = Operands.random(problem, torch.Generator(device).manual_seed(0))
    x, weight, out = operands.input, operands.weight, operands.output
    padding = problem.pad_h
    return {
        ("cuconv", "auto", "new"): lambda: cuconv.conv2d(x, weight, padding=padding),
        ("cuconv", "auto", "given"): lambda: cuconv.conv2d(x, weight, padding=padding, out=out),
        ("cuconv", "two_stage", "new"): lambda: cuconv.conv2d(x, weight, padding=padding, algorithm="two_stage"),
        ("torch", "default", "new"): lambda: F.conv2d(x, weight, padding=padding),
    }


def measure(layers: Iterable[str], device: str, synchronize: Callable[[], None]) -> list[HostTime]:
    """The host times of every call on every layer, without gradients; synchronize waits for the GPU."""
    with torch.no_grad(), waiting():
        calls = {
            (layer, *key): call for layer in layers for key, call in calls_of(problem_labelled(layer), device).items()
        }
        times: dict[tuple[str, str, str, str], list[float]] = {key: [] for key in calls}
        for _ in progress.counted(range(ROUNDS), "rounds"):
            for key, call in calls.items():
                times[key] += times_us(call, synchronize)
    return [HostTime(*key, calls=len(found), median_us=median(found)) for key, found in times.items()]


def measure_first(device: str, synchronize: Callable[[], None]) -> list[HostTime]:
    """The host times of first calls for new sizes; synchronize waits for the GPU."""
    times = {first.name: first_call.times_us(first, synchronize) for first in first_call.first_calls(device)}
    return [HostTime(name, "cuconv", "auto", "new", len(found), median(found)) for name, found in times.items()]


def render(rows: Sequence[HostTime]) -> str:
    """Markdown: a line for each layer or first call, a column for each kind of call."""
    kinds = list(dict.fromkeys((row.provider, row.algorithm, row.output) for row in rows))
    header = ["host us, HW-N-K-M-C", *(f"{provider} {name}, output {output}" for provider, name, output in kinds)]
    times = {(row.layer, row.provider, row.algorithm, row.output): f"{row.median_us:.2f}" for row in rows}
    layers = dict.fromkeys(row.layer for row in rows)
    return markdown(header, [[layer, *(times.get((layer, *kind), "") for kind in kinds)] for layer in layers])


def _begin(options: argparse.Namespace, process: object) -> Callable[[Any], list[HostTime]]:
    load("cuconv")
    measures: dict[str, Callable[..., list[HostTime]]] = {
        CALLS_OF_LAYERS: partial(measure, LAYERS),
        FIRST_CALLS: measure_first,
    }
    return lambda task: measures[task[0]]("cuda", torch.cuda.synchronize)


def _summary(options: argparse.Namespace, folder: Path) -> str:
    rows = HOST.read(folder / HOST.name)
    return f"{render([HostTime(*row) for row in rows.itertuples(index=False)])}\nresults: {folder}"


EXPERIMENT = Experiment(
    name="host",
    about="Host time of a call.",
    what="host times",
    tables=(HOST,),
    cases=lambda options: (CALLS_OF_LAYERS, FIRST_CALLS),
    check=lambda options, cases: first_call.check(),
    begin=_begin,
    summary=_summary,
)
main = EXPERIMENT.main
