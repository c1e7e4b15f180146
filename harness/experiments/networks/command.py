"""python -m harness.networks: measure whole networks, cuConv against torch, and print which was faster.

Writes results/DEVICE/networks/networks.csv and environment.json beside it, and energy.csv with --energy; or
breakdown.csv with --breakdown. Each precision is measured in a process of its own. Needs a GPU.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path

import torch

from harness import command, precision
from harness.errors import UsageError
from harness.experiments.networks import energy
from harness.experiments.networks import measure as networks
from harness.experiments.networks import models as network_models
from harness.experiments.networks.contenders import CONTENDERS, of_precision, set_torch
from harness.experiments.networks.resources import energy_table
from harness.experiments.networks.rows import BREAKDOWN, ENERGY, MODES, NETWORKS, KernelsOfKind, NetworkEnergy
from harness.experiments.networks.table import breakdown_table, networks_table
from harness.precision import MEASURED
from harness.stopwatch import profiler
from harness.store import environment
from harness.store.locked_folder import LockedFolder
from harness.store.table import GroupedRows

NAME = "harness.networks"
BATCHES = (1, 8, 32)
SEED = 0  # of the weights, the data, and the order of the contenders


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 for a lost GPU, 2 for a user's mistake, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    every = [one for one in MEASURED if of_precision(options.contender, one)]
    options.precision = list(dict.fromkeys(options.precision or every))
    options.batch = list(dict.fromkeys(options.batch))
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if len(options.precision) > 1 and not options.dry_run and torch.cuda.is_available():
        return _each_precision(options.precision, typed)
    precision.set_for_process(options.precision[0])
    go_on = "measure the rest with --net, --batch and --contender"
    return command.exit_code(NAME, lambda: _run(options, command.line(NAME, typed)), go_on)


def _each_precision(precisions: Sequence[str], typed: Sequence[str]) -> int:
    """Run the command once for each precision, in a process of its own; returns the first exit code that is not 0."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the child's, which ends in order
    try:
        for one in precisions:  # of an option that is given twice the last counts
            if code := subprocess.run([sys.executable, "-m", NAME, *typed, "--precision", one]).returncode:
                return code
    finally:
        signal.signal(signal.SIGINT, before)
    return command.OK


def _run(options: argparse.Namespace, typed: str) -> None:
    chosen = _chosen(options)
    if options.dry_run:
        _print_plan(options, chosen)
        return
    environment.current_gpu("whole networks", ": '--dry-run' prints what would be measured")
    found = [network_models.find(name) for name in dict.fromkeys(options.net)]
    set_torch(options.precision[0])
    machine = networks.Gpu()
    counter = energy.counter_of(machine.device) if options.energy else None
    with LockedFolder(options.out or environment.results_folder(NETWORKS.folder)) as folder:
        times, kernels, energies = (GroupedRows(folder, table) for table in (NETWORKS, BREAKDOWN, ENERGY))
        environments = environment.EnvironmentFile(folder.path, folder.write)
        settings = networks.Settings(
            {name: CONTENDERS[name] for name in of_precision(chosen, options.precision[0])},
            options.precision[0],
            SEED,
            environments.enter({**environment.report(machine.device, typed), **network_models.versions()}),
            consumption=partial(energy.consumption, counter=counter) if counter else None,
        )
        try:
            if options.breakdown:
                _break_down(found, options.batch, machine, settings, kernels)
            else:
                for row in networks.measure(found, options.batch, machine, settings):
                    if isinstance(row, NetworkEnergy):
                        energies.replace([astuple(row)])
                    else:
                        times.replace([row.cells()])
        finally:
            environments.keep(times.environments | energies.environments | _of_breakdowns(environments))
    if not options.breakdown:
        _print_summary(times.path)
    if options.energy:
        _print_energy(energies.path)


def _break_down(
    found: Sequence[network_models.Network],
    batches: Sequence[int],
    machine: networks.Machine,
    settings: networks.Settings,
    stored: GroupedRows,
) -> None:
    rows: list[KernelsOfKind] = []
    for kinds in networks.break_down(found, batches, machine, settings, profiler.kernels):
        stored.replace(map(astuple, kinds))
        rows += kinds
    if not rows:
        raise UsageError("--breakdown: no kernel was recorded: check that this user may profile the GPU (CUPTI)")
    print(breakdown_table(rows))


def _print_summary(path: Path) -> None:
    rows = NETWORKS.read(path)
    print(networks_table(rows) or "Nothing here to compare: it takes rows of cuConv and of torch in mode graph.")
    failed = int((rows.status != "ok").sum())
    print(f"\n{len(rows)} rows, {failed} of them failed\nresults: {path}")


def _print_energy(path: Path) -> None:
    table = energy_table(ENERGY.read(path)) if path.exists() else ""
    print(f"\n{table or 'No energies to compare: it takes rows of cuConv and of torch in one precision.'}\n{path}")


def _of_breakdowns(environments: environment.EnvironmentFile) -> set[str]:
    """The reports of commands that wrote breakdown.csv, whose rows name none."""
    stored = environments.environments.items()
    return {name for name, facts in stored if any("--breakdown" in one["command"] for one in facts["commands"])}


def _chosen(options: argparse.Namespace) -> list[str]:
    """The contenders of a command whose names and numbers are checked."""
    for name in options.net:
        network_models.split_name(name)
    for batch in options.batch:
        if batch < 1:
            raise UsageError(f"--batch {batch}: must be at least 1")
    for name in options.contender:
        if name not in CONTENDERS:
            raise UsageError(f"--contender {name}: must be one of {', '.join(CONTENDERS)}")
    for one in options.precision:
        if not of_precision(options.contender, one):
            raise UsageError(f"--contender {' '.join(options.contender)}: none of them computes in {one}")
    return [name for name in CONTENDERS if name in options.contender]


def _print_plan(options: argparse.Namespace, contenders: Sequence[str]) -> None:
    for name in dict.fromkeys(options.net):
        print(f"{name}: batch {', '.join(map(str, options.batch))}")
    print(f"contenders: {', '.join(contenders)}\nprecisions: {', '.join(options.precision)}")
    if options.breakdown:
        print("kernels by kind, no times of forwards")
        return
    cases = len(set(options.net)) * len(options.batch)
    measured = sum(len(of_precision(contenders, precision)) for precision in options.precision)
    print(f"modes: {', '.join(MODES)}\n{cases * measured * len(MODES)} rows{', and energies' * options.energy}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {NAME}",
        description="Measure whole networks: cuConv against torch. Options take several values.",
    )
    add = parser.add_argument
    names = ", ".join(network_models.NETWORKS)
    add("--net", nargs="+", metavar="NETWORK", default=list(network_models.NETWORKS),
        help=f"these networks: {names}, torchvision:NAME, timm:NAME (default: the named)")  # fmt: skip
    add("--batch", nargs="+", type=int, metavar="N", default=list(BATCHES), help="batch sizes (default: 1 8 32)")
    add("--precision", nargs="+", choices=MEASURED,
        help="tf32: torch and cuConv with TF32 allowed; fp16: torch in half precision (default: all)")  # fmt: skip
    add("--contender", nargs="+", metavar="NAME", default=list(CONTENDERS),
        help=f"only these contenders: {', '.join(CONTENDERS)}")  # fmt: skip
    also = parser.add_mutually_exclusive_group().add_argument
    also("--breakdown", action="store_true", help="record kernels by kind instead of times of forwards")
    also("--energy", action="store_true", help="measure the GPU's energy of an image too")
    add("--out", type=command.folder, help="results folder (default: results/DEVICE/networks)")
    add("--dry-run", action="store_true", help="print what would be measured and stop")
    return parser
