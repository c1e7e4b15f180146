"""python -m harness networks: measure whole networks, cuConv against torch, and print which was faster.

Writes results/DEVICE/networks/networks.csv and environment.json beside it, and energy.csv with --energy; or
breakdown.csv with --breakdown. Each precision is measured in a process of its own. Needs a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch

from harness import precision
from harness.errors import UsageError
from harness.experiment import Experiment
from harness.experiments.networks import energy
from harness.experiments.networks import measure as networks
from harness.experiments.networks import models as network_models
from harness.experiments.networks.contenders import CONTENDERS, MEASURED, of_precision, set_torch
from harness.experiments.networks.resources import energy_table
from harness.experiments.networks.rows import (
    BREAKDOWN,
    ENERGY,
    MODES,
    NETWORKS,
    PAPER_NETWORKS,
    KernelsOfKind,
    NetworkEnergy,
    NetworkTime,
)
from harness.experiments.networks.table import breakdown_table, networks_table
from harness.isolation import Begins, WorkerEnded
from harness.stopwatch import profiler
from harness.store.files import stored
from harness.store.table import Cleared

BATCHES = (1, 8, 32)
SEED = 0  # for the weights, the data, and the order of the contenders


@dataclass(frozen=True, slots=True)
class NetworkCase:
    """A network by the name that a user types, a batch and a precision."""

    network: str
    batch: int
    precision: str

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}, {self.precision}"


def _cases(options: argparse.Namespace) -> list[NetworkCase]:
    """The cases of a command whose names and numbers are checked."""
    for name in options.net:
        network_models.split_name(name)
    for batch in options.batch:
        if batch < 1:
            raise UsageError(f"--batch {batch}: must be at least 1")
    for name in options.contender:
        if name not in CONTENDERS:
            raise UsageError(f"--contender {name}: must be one of {', '.join(CONTENDERS)}")
    for one in options.precision or ():
        if not of_precision(options.contender, one):
            raise UsageError(f"--contender {' '.join(options.contender)}: none of them computes in {one}")
    precisions = options.precision or [one for one in MEASURED if of_precision(options.contender, one)]
    return [
        NetworkCase(name, batch, one)
        for one in dict.fromkeys(precisions)
        for name in dict.fromkeys(options.net)
        for batch in dict.fromkeys(options.batch)
    ]


def _contenders(options: argparse.Namespace, precision: str) -> list[str]:
    return of_precision([name for name in CONTENDERS if name in options.contender], precision)


def _check(options: argparse.Namespace, cases: Sequence[NetworkCase]) -> None:
    for name in dict.fromkeys(case.network for case in cases):
        network_models.find(name)
    if options.energy:
        energy.counter_of(torch.device("cuda", torch.cuda.current_device()))


def _begin(options: argparse.Namespace, chosen: Any) -> Callable[[Any], Iterator[Any]]:
    """Set a process up for a precision; returns what measures a case there."""
    precision.set_for_process(chosen)
    set_torch(chosen)
    machine = networks.Gpu()
    counter = energy.counter_of(machine.device) if options.energy else None
    settings = networks.Settings(
        {name: CONTENDERS[name] for name in _contenders(options, chosen)},
        chosen,
        SEED,
        consumption=partial(energy.consumption, counter=counter) if counter else None,
    )
    case_of = networks.cases(machine, settings)

    def measure(task: tuple[NetworkCase, Collection[Begins]]) -> Iterator[Any]:
        case, broken = task
        found = case_of(network_models.find(case.network), case.batch)
        if options.breakdown:
            return networks.break_down(found, machine, profiler.kernels, broken)
        return networks.measure(found, machine, broken)

    return measure


def _failed(options: argparse.Namespace, case: NetworkCase, end: WorkerEnded) -> Iterator[NetworkTime]:
    if options.breakdown:
        return
    network = network_models.find(case.network)
    for contender in [end.begun.provider] if end.begun.provider else _contenders(options, case.precision):
        for mode in MODES:
            yield NetworkTime(
                network.name, network.source, case.batch, contender, case.precision, mode, end.status, str(end)
            )  # fmt: skip


def _clears(options: argparse.Namespace, case: NetworkCase) -> Iterator[Cleared]:
    """The groups of kernels or energies of a case, one for each contender."""
    network = network_models.find(case.network)
    for contender in _contenders(options, case.precision):
        if options.breakdown:
            yield Cleared(KernelsOfKind, (network.label, case.batch, contender, case.precision))
        if options.energy:
            yield Cleared(NetworkEnergy, (network.name, network.source, case.batch, contender, case.precision))


def _groups(options: argparse.Namespace, case: NetworkCase) -> Iterator[tuple[type, tuple[str, ...]]]:
    """The rows of a case. Kernels have no environment, so a case with --breakdown is always measured."""
    network = network_models.find(case.network)
    for contender in _contenders(options, case.precision):
        key = (network.name, network.source, str(case.batch), contender, case.precision)
        if options.breakdown:
            yield KernelsOfKind, (network.label, *key[2:])
            continue
        yield from ((NetworkTime, (*key, mode)) for mode in MODES)
        if options.energy:
            yield NetworkEnergy, key


def _plan(options: argparse.Namespace, cases: Sequence[NetworkCase]) -> str:
    networks, batches = dict.fromkeys(case.network for case in cases), dict.fromkeys(str(case.batch) for case in cases)
    of_precisions = {case.precision: _contenders(options, case.precision) for case in cases}
    lines = [f"networks: {', '.join(networks)}", f"batches: {', '.join(batches)}"]
    lines += [f"contenders in {precision}: {', '.join(names)}" for precision, names in of_precisions.items()]
    if options.breakdown:
        return "\n".join([*lines, "kernels by kind, no times of forwards"])
    factors = {
        "networks": len(networks),
        "batches": len(batches),
        "contenders in these precisions": sum(map(len, of_precisions.values())),
        f"modes ({', '.join(MODES)})": len(MODES),
    }
    rows = prod(factors.values())
    product = " x ".join(f"{count} {what}" for what, count in factors.items())
    return "\n".join([*lines, f"{product} = {rows} rows{f', and {rows // 2} energies' * options.energy}"])


def _summary(options: argparse.Namespace, folder: Path) -> str:
    if options.breakdown:
        path = folder / BREAKDOWN.name
        return breakdown_table([KernelsOfKind(*row) for row in BREAKDOWN.read(path).itertuples(index=False)])
    rows = NETWORKS.read(folder / NETWORKS.name)
    table = networks_table(rows) or "Nothing here to compare: it takes rows of cuConv and of torch in mode graph."
    failed = int((rows.status != "ok").sum())
    text = f"{table}\n\n{len(rows)} rows, {failed} of them failed\nresults: {folder / NETWORKS.name}"
    if not options.energy:
        return text
    path = folder / ENERGY.name
    energies = energy_table(ENERGY.read(path)) if stored(path).exists() else ""
    return (
        f"{text}\n\n"
        f"{energies or 'No energies to compare: it takes rows of cuConv and of torch in one precision.'}\n{path}"
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    named, modern = (", ".join(names) for names in (PAPER_NETWORKS, network_models.MODERN))
    add("--net", nargs="+", metavar="NETWORK", default=list(PAPER_NETWORKS),
        help=f"these networks: {named} (default: these five), {modern}, torchvision:NAME, timm:NAME")  # fmt: skip
    add("--batch", nargs="+", type=int, metavar="N", default=list(BATCHES), help="batch sizes (default: 1 8 32)")
    add("--precision", nargs="+", choices=MEASURED,
        help="tf32: with TF32 allowed; fp16: models in half precision (default: all)")  # fmt: skip
    add("--contender", nargs="+", metavar="NAME", default=list(CONTENDERS),
        help=f"only these contenders: {', '.join(CONTENDERS)}")  # fmt: skip
    also = parser.add_mutually_exclusive_group().add_argument
    also("--breakdown", action="store_true", help="record kernels by kind instead of times of forwards")
    also("--energy", action="store_true", help="measure the GPU's energy of an image too")


EXPERIMENT = Experiment(
    name="networks",
    about="Measure whole networks: cuConv against torch. Options take several values.",
    what="whole networks",
    tables=(NETWORKS, BREAKDOWN, ENERGY),
    cases=_cases,
    check=_check,
    begin=_begin,
    failed=_failed,
    clears=_clears,
    groups=_groups,
    process=lambda case: case.precision,
    shared=True,
    plan=_plan,
    summary=_summary,
    facts=network_models.versions,
    add_options=_add_options,
    go_on="go on with the same command and --resume",
)
main = EXPERIMENT.main
