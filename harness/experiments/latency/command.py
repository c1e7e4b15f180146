"""python -m harness latency: how long the first result of a new input size, and of a new process, takes.

cuConv beside torch, one image, FP32. Everything is timed in fresh processes. Writes results/DEVICE/latency/latency.csv
and environment.json beside it. Needs a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import precision
from harness.errors import UsageError
from harness.experiment import Experiment
from harness.experiments.latency.plan import LEAST, MAX_SIZES, MOST, SEED, START_NETWORK, Process, processes, typed
from harness.experiments.latency.rows import CONTENDERS, LATENCY, SIZE, START, Latency
from harness.experiments.latency.run import measure
from harness.experiments.latency.table import sizes_table, starts_table
from harness.experiments.networks import models as network_models
from harness.experiments.networks.rows import label

NETWORKS, SIZES, WHATS = ("resnet18", "mobilenet_v2"), 40, (SIZE, START)


def _check(options: argparse.Namespace, cases: Sequence[Process]) -> None:
    for network in dict.fromkeys(process.network for process in cases):
        network_models.find(typed(network))


def _loop(options: argparse.Namespace, cases: Sequence[Process]) -> Iterator[list[Latency]]:
    precision.set_for_process(precision.FP32)  # the processes that this one starts inherit it
    return measure(cases, options.seed)


def _summary(options: argparse.Namespace, folder: Path) -> str:
    rows = LATENCY.read(folder / LATENCY.name)
    return "\n\n".join(table for table in (sizes_table(rows), starts_table(rows), f"results: {folder}") if table)


def _planned(options: argparse.Namespace) -> list[Process]:
    """The processes of a command whose names and numbers are checked."""
    networks = [_label(name) for name in options.net]
    if not 1 <= options.sizes <= MAX_SIZES:
        raise UsageError(f"--sizes {options.sizes}: must be 1 to {MAX_SIZES}")
    for option, names, allowed in (("contender", options.contender, CONTENDERS), ("what", options.what, WHATS)):
        for name in names:
            if name not in allowed:
                raise UsageError(f"--{option} {name}: must be one of {', '.join(allowed)}")
    contenders = [name for name in CONTENDERS if name in options.contender]
    return processes(list(dict.fromkeys(networks)), contenders, options.what, options.sizes)


def _label(name: str) -> str:
    """The name of a network in the CSV file. Raises UsageError where a user's name has no form of one."""
    source, network = network_models.split_name(typed(name))
    return label(network, source)


def _plan(options: argparse.Namespace, planned: Sequence[Process]) -> str:
    counts = {process: planned.count(process) for process in planned}
    lines = [f"{process.title}: {count} x {process.rows} rows" for process, count in counts.items()]
    if SIZE in options.what:
        lines.append(f"heights and widths: {LEAST} to {MOST}, seed {options.seed}")
    total = f"{len(planned)} processes, {sum(process.rows for process in planned)} rows"
    return "\n".join(["processes x rows of each:", *lines, total])


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--net", nargs="+", metavar="NETWORK", default=list(NETWORKS),
        help=f"networks of torchvision, or timm:NAME, for new sizes (default: {' '.join(NETWORKS)})")  # fmt: skip
    add("--sizes", type=int, metavar="N", default=SIZES, help=f"number of new sizes (default: {SIZES})")
    add("--seed", type=int, default=SEED, help=f"of the sizes, the same for all (default: {SEED})")
    add("--what", nargs="+", metavar="WHAT", default=list(WHATS),
        help=f"{SIZE}: new sizes; {START}: convert {START_NETWORK}, and new processes (default: both)")  # fmt: skip
    add("--contender", nargs="+", metavar="NAME", default=list(CONTENDERS),
        help=f"only these contenders: {', '.join(CONTENDERS)}")  # fmt: skip


EXPERIMENT = Experiment(
    name="latency",
    about="Time the first results of new input sizes and of new processes. Options take several values.",
    what="first results",
    tables=(LATENCY,),
    cases=_planned,
    check=_check,
    loop=_loop,
    plan=_plan,
    summary=_summary,
    facts=network_models.versions,
    add_options=_add_options,
    go_on="measure the rest with --what, --net and --contender",
)
main = EXPERIMENT.main
