"""python -m harness conditions: whether the sweep's times depend on the clock of an idle GPU, or on fixed addresses.

The sweep times calls one after another, on the same operands, on a GPU that has just had a pause. Some of the paper's
cases are timed under two more conditions:

sustained  the runs follow two seconds of the same calls, without a pause: the clock is that of a GPU under load
rotated    each call uses the next copy of the operands; up to 64 copies together take twice the bytes of L2

cuConv's `auto` is compared with the rival of the shortest hot time, in FP32. Workspaces are not rotated, and neither
are the outputs of torch, which allocates them. Prints a table and writes results/DEVICE/conditions/conditions.csv and
environment.json beside it. Needs a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

import torch

from harness import precision
from harness.cases.catalogue import Case, Sweep, load_sweep
from harness.contenders.base import PLAIN, Contender, NotRunnable, Offer, Operands, load, prepare_within
from harness.contenders.registry import PROVIDERS, Role, shown
from harness.experiment import Experiment
from harness.experiments.conditions.rows import CONDITION_TIMES, CONDITIONS, OURS, ROTATED, SUSTAINED, ConditionTime
from harness.experiments.conditions.table import conditions_table
from harness.isolation import Begins, Lacks, Measure
from harness.stopwatch import timing
from harness.stopwatch.between import L2_SIZES
from harness.stopwatch.clocks import CaseClocks, sensors_of
from harness.stopwatch.graph import HostTooSlow
from harness.sweep.one_case import CaseUnderTest, Options
from harness.sweep.records import OK

BATCHES = (1, 8, 32)
LARGEST, SPREAD = 3, 5  # layers of the most FLOP, and others at even steps through the catalogue
LOAD_S = 2.0
MOST_COPIES = 64
RIVALS = tuple(name for name, provider in PROVIDERS.items() if provider.role is Role.RIVAL)

Call = Callable[[], torch.Tensor]
Event = Begins | Lacks | ConditionTime


class Rotation:
    """Copies of a case's operands, on which a prepared call takes turns.

    The tensors of the operands are moved from one copy's memory to the next. So the call stays the same, and torch
    keeps its plan. It must read the tensors' addresses whenever it is called, as the contenders do in FP32.
    """

    def __init__(self, operands: Operands, least_bytes: int):
        """Make the copies: as many as take least_bytes together, but at least 2 and at most MOST_COPIES."""
        self._tensors = operands.input, operands.weight, operands.output
        own = [tensor.detach() for tensor in self._tensors]
        count = min(MOST_COPIES, max(2, ceil(least_bytes / sum(tensor.nbytes for tensor in own))))
        # The operands' own memory is the last, so they are where they were after each round.
        self._copies = [*([tensor.clone() for tensor in own] for _ in range(count - 1)), own]
        self.outputs = [output for *_, output in self._copies]

    def round(self, call: Call) -> torch.Tensor:
        """Call once on each copy; returns the last call's output."""
        for copy in self._copies:
            for tensor, memory in zip(self._tensors, copy, strict=True):
                tensor.data = memory
            output = call()
        return output


def on_operands(provider: str) -> Contender:
    """A provider's contender, whose calls all take the operands themselves: a rotation moves no copies of them."""
    contender = load(provider)
    contender.layouts = (PLAIN,)
    return contender


def sample() -> Sweep:
    """The paper's sweep with the cases of this experiment alone."""
    sweep = load_sweep("paper", batches=BATCHES)
    layers = list(dict.fromkeys(case.layer for case in sweep.cases))
    largest = sorted(layers, key=lambda layer: -Case(layer, 1).problem.flop)[:LARGEST]
    others = [layer for layer in layers if layer not in largest]
    spread = [others[(2 * i + 1) * len(others) // (2 * SPREAD)] for i in range(SPREAD)]
    cases = tuple(Case(layer, batch) for layer in (*largest, *spread) for batch in BATCHES)
    return Sweep(sweep.name, cases, sweep.runs, sweep.workspace_limit)


@torch.no_grad()
def measure(
    case: Case,
    entered: Mapping[str, Contender],
    options: Options,
    least_bytes: int,
    broken: Collection[Begins] = (),
) -> Iterator[Event]:
    """The rows of auto and of its fastest rival under each condition, without the algorithms in `broken`.

    least_bytes: what the copies of the rotated operands take together.
    """
    under = CaseUnderTest(case, options)
    offers: list[Offer] = []
    for provider, contender in entered.items():
        yield Begins(provider)
        there = contender.offers(under.problem, under.operands)
        offers += [offer for offer in there if Begins(provider, offer.algorithm) not in broken]
    compared = [offer for offer in offers if (offer.provider, offer.algorithm) == OURS]
    hot: list[tuple[float, Offer]] = []
    for offer in (offer for offer in offers if offer.provider != OURS[0]):
        yield Begins(offer.provider, offer.algorithm)
        row = under.measure(offer, under.clocks.steadily)
        if row.status == OK and row.mean_us is not None:
            hot.append((row.mean_us, offer))
    if not (compared and hot):
        yield Lacks(f"{case.label}: {'no rival' if compared else shown(*OURS)} runs")
        return
    compared.append(min(hot, key=lambda one: one[0])[1])
    timed = _Conditions(case, under, options, Rotation(under.operands, least_bytes))
    calls: list[tuple[Offer, Call]] = []
    for offer in compared:
        yield Begins(offer.provider, offer.algorithm)
        calls.append((offer, prepare_within(offer, options.workspace_limit).call))
    for condition in CONDITIONS:
        for offer, call in calls:
            yield Begins(offer.provider, offer.algorithm)
            yield timed.row(offer, call, condition)


@dataclass(frozen=True, slots=True)
class _Conditions:
    """A case whose prepared calls are timed under each condition."""

    case: Case
    under: CaseUnderTest
    options: Options
    rotation: Rotation

    def row(self, offer: Offer, call: Call, condition: str) -> ConditionTime | Lacks:
        """The row of a call, or why it has no time."""
        device, steadily, load_s = self.options.device, self.under.clocks.steadily, 0.0
        outputs = [self.under.operands.output]
        if condition == SUSTAINED:  # with clocks of its own: a low clock is no reason to repeat these runs
            steadily, load_s = CaseClocks(sensors_of(device)).steadily, LOAD_S
        elif condition == ROTATED:
            call, outputs = partial(self.rotation.round, call), self.rotation.outputs
        named = f"{shown(offer.provider, offer.algorithm)} on {self.case.label}, {condition}"
        try:
            call()
            timed = timing.measure(call, self.options.runs, device, steadily, load_s)
        except (NotRunnable, timing.TooSlow, HostTooSlow) as reason:
            return Lacks(f"{named}: {reason}")
        if not self._are_right(timed, outputs):
            return Lacks(f"{named}: an output is wrong")
        runs_us = tuple(us / len(outputs) for us in timed.runs_us)
        names = offer.provider, offer.algorithm, condition
        return ConditionTime(self.case.key, *names, len(outputs), runs_us, timed.reading.sm_clock_mhz)

    def _are_right(self, timed: timing.Timing, outputs: Sequence[torch.Tensor]) -> bool:
        """Whether the timed calls write the right outputs. torch returns outputs of its own: the last is verified."""
        for output in outputs:
            output.fill_(torch.nan)
        errors = [self.under.errors_of(timed)]
        if timed.output is self.under.operands.output:
            errors += map(self.under.verifier.errors, outputs)
        return all(error.acceptable for error in errors)


def _begin(options: argparse.Namespace, process: object) -> Measure:
    """Load the contenders in a process; returns what measures a case there."""
    precision.set_for_process(precision.FP32)
    sweep, entered = sample(), {provider: on_operands(provider) for provider in (OURS[0], *RIVALS)}
    for provider, contender in entered.items():
        algorithms = frozenset(OURS[1:]) if provider == OURS[0] else None
        contender.begin([case.problem for case in sweep.cases], algorithms)
    device = torch.device("cuda", torch.cuda.current_device())
    chosen = Options(device, tuple(entered), None, sweep.runs, 0, sweep.workspace_limit, "")
    least_bytes = L2_SIZES * torch.cuda.get_device_properties(device).L2_cache_size

    def measure_task(task: tuple[Case, Collection[Begins]]) -> Iterator[Event]:
        return measure(task[0], entered, chosen, least_bytes, task[1])

    return measure_task


def _summary(options: argparse.Namespace, folder: Path) -> str:
    return f"{conditions_table(CONDITION_TIMES.read(folder / CONDITION_TIMES.name))}\nresults: {folder}"


EXPERIMENT = Experiment(
    name="conditions",
    about="Times of some cases on a GPU under load, and on operands whose addresses change.",
    what="conditions",
    tables=(CONDITION_TIMES,),
    cases=lambda options: sample().cases,
    begin=_begin,
    summary=_summary,
)
main = EXPERIMENT.main
