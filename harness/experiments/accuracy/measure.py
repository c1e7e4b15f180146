"""python -m harness accuracy: errors of cuConv and cuDNN on data whose magnitudes are far from ordinary.

The cases are every layer of the paper at a small batch. The data are normal numbers that magnitudes.py changes, for
example times powers of ten over channels, filters or images. A row has three errors against float64:

rel_l2_error         ||out - ref|| / ||ref||; where filters or images are scaled, each is divided by its scale first,
                     so that all count alike
componentwise_error  the largest error of an output in multiples of what a plain FP32 sum may have there
worst_image_error    the largest over the images of ||out - ref|| / ||ref||

Prints tables and writes results/DEVICE/accuracy/accuracy.csv and the environment.json beside it. `--net` is a quick
look at some networks. Needs a GPU.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from math import isfinite, nan, sqrt
from typing import Any

import torch

from cuconv import reference
from cuconv.core.problem import UnsupportedProblem
from harness import precision
from harness.cases.catalogue import Case, Sweep, load_sweep
from harness.contenders.base import PLAIN, Contender, NotRunnable, Offer, Operands, load, prepare_within
from harness.experiment import Experiment
from harness.experiments.accuracy.magnitudes import MAGNITUDES
from harness.experiments.accuracy.rows import ACCURACY, Accuracy
from harness.experiments.accuracy.table import SHOWN, tables_of
from harness.isolation import Begins, WorkerEnded
from harness.precision import FP32

BATCH = 4  # enough images to differ, and a batch size of no sweep

SLICE = f"{ACCURACY.folder}-slice"  # the folder of a quick look, which leaves the full measurement as it is
UNIT_ROUNDOFF, SMALLEST = 2.0**-24, 2.0**-149  # in FP32; the smallest positive number is subnormal


def relative_error(output: torch.Tensor, truth: torch.Tensor, unit: torch.Tensor) -> float:
    """||output - truth|| / ||truth||, both in multiples of `unit`; NaN where an output is not finite."""
    difference = (output.double() - truth) / unit
    error = float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(truth / unit))
    return error if isfinite(error) else nan


def componentwise_error(output: torch.Tensor, truth: torch.Tensor, absolute: torch.Tensor, terms: int) -> float:
    """The largest error of an output in units of 2^-24 * sqrt(terms) * absolute: a plain FP32 sum has about 1.

    truth: the convolution in float64. absolute: that of the absolute values, so each output has the sum of its
    products' magnitudes. terms: the number of products in an output.

    An error of up to terms * 2^-149 counts as 0, because each product may underflow to a subnormal number. An error
    where all products are 0 is infinite. The result is NaN where an output is not finite although the truth, rounded
    to FP32, is finite; outputs whose truth is not finite are left out.
    """
    finite = truth.float().isfinite()
    if bool((finite & ~output.isfinite()).any()):
        return nan
    excess = (output.double() - truth).abs() - terms * SMALLEST
    error = excess / (UNIT_ROUNDOFF * sqrt(terms) * absolute)
    return float(torch.where(finite & (excess > 0), error, 0.0).max())


def worst_image_error(output: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest ||output - truth|| / ||truth|| over the images of a batch; NaN where an output is not finite.

    Images whose truth is 0 everywhere are left out.
    """
    if not bool(output.isfinite().all()):
        return nan
    difference = torch.linalg.vector_norm((output.double() - truth).flatten(1), dim=1)
    norm = torch.linalg.vector_norm(truth.flatten(1), dim=1)
    return float(torch.where(norm > 0, difference / norm, 0.0).max())


@torch.no_grad()
def measure(
    case: Case,
    entered: Mapping[str, Contender],
    device: torch.device,
    workspace_limit: int,
    broken: Collection[Begins] = (),
) -> Iterator[Begins | Accuracy]:
    """A row for each algorithm and each of MAGNITUDES, but for those in `broken`; workspace_limit is in bytes.

    The tensors of a case stay in place and are refilled, so that a call is prepared only once.
    """
    p = case.problem
    operands = Operands.random(p, torch.Generator(device).manual_seed(zlib.crc32(case.label.encode())))
    normal = operands.input.clone(), operands.weight.clone()
    offers: list[Offer] = []
    for provider, contender in entered.items():
        yield Begins(provider)
        offers += [one for one in contender.offers(p, operands) if Begins(provider, one.algorithm) not in broken]
    calls: list[tuple[Offer, Callable[[], torch.Tensor]]] = []
    for offer in offers:
        yield Begins(offer.provider, offer.algorithm)
        try:
            calls.append((offer, prepare_within(offer, workspace_limit).call))
        except (NotRunnable, UnsupportedProblem) as reason:
            for name in MAGNITUDES:
                yield _not_run(case, offer, name, reason)
    terms = p.group_channels * p.filter_area
    for name, make in MAGNITUDES.items():
        # A generator of its own: a kind of data stays the same when another is added or changed.
        data = make(p, *normal, torch.Generator(device).manual_seed(zlib.crc32(f"{case.label} {name}".encode())))
        operands.input.copy_(data.input)
        operands.weight.copy_(data.weight)
        truth = reference.conv2d(operands.input, operands.weight, **p.geometry)
        absolute = reference.conv2d(operands.input.abs(), operands.weight.abs(), **p.geometry)
        for offer, call in calls:
            yield Begins(offer.provider, offer.algorithm)
            operands.output.fill_(torch.nan)
            try:
                output = call()
                errors = (
                    relative_error(output, truth, data.unit),
                    componentwise_error(output, truth, absolute, terms),
                    worst_image_error(output, truth),
                )
            except (NotRunnable, UnsupportedProblem) as reason:
                yield _not_run(case, offer, name, reason)
            else:
                yield _row(case, offer.provider, offer.algorithm, name, "ok", "", errors)


def _row(
    case: Case,
    provider: str,
    algorithm: str,
    magnitudes: str,
    status: str,
    detail: str,
    errors: tuple[float | None, float | None, float | None] = (None, None, None),
) -> Accuracy:
    overall, componentwise, worst_image = errors
    return Accuracy(
        case=case.key, provider=provider, algorithm=algorithm, magnitudes=magnitudes, status=status, detail=detail,
        rel_l2_error=overall, componentwise_error=componentwise, worst_image_error=worst_image,
    )  # fmt: skip


def _not_run(case: Case, offer: Offer, magnitudes: str, reason: NotRunnable | UnsupportedProblem) -> Accuracy:
    status = reason.status if isinstance(reason, NotRunnable) else "unsupported"
    return _row(case, offer.provider, offer.algorithm, magnitudes, status, str(reason))


def _sweep(options: argparse.Namespace) -> Sweep:
    return load_sweep("paper", networks=options.net, batches=[BATCH])


def _begin(options: argparse.Namespace, process: object) -> Callable[[Any], Iterator[Begins | Accuracy]]:
    """Load the contenders in a process; returns what measures a case there."""
    precision.set_for_process(FP32)
    sweep, entered = _sweep(options), {provider: load(provider) for provider in SHOWN}
    for contender in entered.values():
        contender.layouts = (PLAIN,)  # calls on the operands themselves, which are refilled
    for contender in entered.values():
        contender.begin([case.problem for case in sweep.cases], None)
    device = torch.device("cuda", torch.cuda.current_device())

    def measure_task(task: tuple[Case, Collection[Begins]]) -> Iterator[Begins | Accuracy]:
        case, broken = task
        return measure(case, entered, device, sweep.workspace_limit, broken)

    return measure_task


def _failed(options: argparse.Namespace, case: Case, end: WorkerEnded) -> Iterator[Accuracy]:
    for name in MAGNITUDES if end.begun.algorithm else ():
        yield _row(case, end.begun.provider, end.begun.algorithm, name, end.status, str(end))


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--net", nargs="+", metavar="NETWORK",
        help=f"a quick look at the layers of these networks of the paper alone, in results/DEVICE/{SLICE}")  # fmt: skip


EXPERIMENT = Experiment(
    name="accuracy",
    about="Errors on data of far from ordinary magnitudes.",
    what="errors",
    tables=(ACCURACY,),
    cases=lambda options: _sweep(options).cases,
    begin=_begin,
    failed=_failed,
    folder=lambda options: SLICE if options.net else ACCURACY.folder,
    summary=lambda options, folder: f"{tables_of(ACCURACY.read(folder / ACCURACY.name))}\nresults: {folder}",
    add_options=_add_options,
)
main = EXPERIMENT.main
