"""python -m harness.latency: how long the first result of a new input size, and of a new process, takes.

cuConv beside torch, one image, FP32. Everything is timed in fresh processes. Writes results/DEVICE/latency/latency.csv
and environment.json beside it. Needs a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import astuple

from harness import command, precision
from harness.errors import ResultsError, UsageError
from harness.experiments.latency.plan import LEAST, MAX_SIZES, MOST, SEED, START_NETWORK, Process, processes, typed
from harness.experiments.latency.rows import CONTENDERS, LATENCY, SIZE, START
from harness.experiments.latency.run import measure
from harness.experiments.latency.table import sizes_table, starts_table
from harness.experiments.networks import models as network_models
from harness.experiments.networks.rows import label
from harness.store import environment
from harness.store.locked_folder import LockedFolder
from harness.store.table import GroupedRows

NETWORKS, SIZES, WHATS = ("resnet18", "mobilenet_v2"), 40, (SIZE, START)


def _run(options: argparse.Namespace) -> None:
    precision.set_for_process(precision.FP32)  # of the processes that this one starts
    planned = _planned(options)
    if options.dry_run:
        _print_plan(planned, options)
        return
    device = environment.current_gpu("first results", ": '--dry-run' prints what would be measured")
    for network in dict.fromkeys(process.network for process in planned):
        network_models.find(typed(network))  # before anything is measured
    with LockedFolder(options.out or environment.results_folder(LATENCY.folder)) as folder:
        rows, environments = GroupedRows(folder, LATENCY), environment.EnvironmentFile(folder.path, folder.write)
        facts = environment.report(device, options.typed)
        entered = environments.enter({**facts, **network_models.versions()})
        try:
            failed = measure(planned, options.seed, entered, lambda found: rows.replace(map(astuple, found)))
        finally:
            environments.keep(rows.environments)
    if rows.path.exists():
        frame = LATENCY.read(rows.path)
        print("\n\n".join(table for table in (sizes_table(frame), starts_table(frame)) if table))
        print(f"\nresults: {rows.path}")
    if failed:
        raise ResultsError(
            f"{len(failed)} of {len(planned)} processes failed or need one that did, so that rows are missing or old: "
            f"{'; '.join(dict.fromkeys(process.title for process in failed))}"
        )


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


def _print_plan(planned: Sequence[Process], options: argparse.Namespace) -> None:
    for process in dict.fromkeys(planned):
        number = f"{process.rows} sizes" if process.what == SIZE else f"x {planned.count(process)}"
        print(f"{process.title}, {number}")
    if SIZE in options.what:
        print(f"heights and widths: {LEAST} to {MOST}, seed {options.seed}")
    print(f"{len(planned)} processes, {sum(process.rows for process in planned)} rows")


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
    add("--out", type=command.folder, metavar="FOLDER", help="results folder (default: results/DEVICE/latency)")
    add("--dry-run", action="store_true", help="print what would be measured and stop")


main = command.program(
    "harness.latency",
    "Time the first results of new input sizes and of new processes. Options take several values.",
    _run,
    _add_options,
    "measure the rest with --what, --net and --contender",
)
