"""python -m harness.experiments accuracy: errors of cuConv and cuDNN on data whose magnitudes are far from ordinary.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, nan, sqrt

import torch

from cuconv import reference
from cuconv.core.problem import UnsupportedProblem
from harness import command, precision, progress
from harness.cases.catalogue import Case, load_sweep
from harness.contenders.base import Contender, NotRunnable, Offer, Operands, load, prepare_within
from harness.experiments.accuracy.magnitudes import MAGNITUDES
from harness.experiments.accuracy.rows import ACCURACY
from harness.experiments.accuracy.table import SHOWN, tables_of
from harness.precision import FP32
from harness.store import environment

BATCH = 4  # of the paper's layers: enough images to differ, and a batch size of no sweep

SLICE = f"{ACCURACY.folder}-slice"  # the folder of a quick look, which leaves the full measurement as it is
UNIT_ROUNDOFF, SMALLEST = 2.0**-24, 2.0**-149  # of FP32; the smallest positive number is subnormal


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one algorithm on one case's data; an error exists only where status is "ok"."""

    case: Case
    provider: str
    algorithm: str
    magnitudes: str
    status: str
    detail: str = ""
    rel_l2_error: float | None = None
    componentwise_error: float | None = None
    worst_image_error: float | None = None

    def cells(self) -> list[object]:
        """The row in the order of accuracy.csv's columns."""
        errors = (self.rel_l2_error, self.componentwise_error, self.worst_image_error)
        detail = " ".join(self.detail.split())
        return [*self.case.key, self.provider, self.algorithm, self.magnitudes, self.status, detail, *errors]


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


def measure(
    cases: Iterable[Case], entered: Mapping[str, Contender], device: torch.device, workspace_limit: int
) -> Iterator[Row]:
    """A row for each algorithm and each of MAGNITUDES of every case; workspace_limit is in bytes."""
    cases = list(cases)
    for contender in entered.values():
        contender.begin([case.problem for case in cases], None)
    with progress.counted(cases) as bar:
        for case in bar:
            bar.set_description_str(case.label, refresh=False)
            yield from _measure_case(case, entered, device, workspace_limit)


@torch.no_grad()
def _measure_case(
    case: Case, entered: Mapping[str, Contender], device: torch.device, workspace_limit: int
) -> Iterator[Row]:
    """The rows of a case. Its tensors stay in place and are refilled, so that a call is prepared only once."""
    p = case.problem
    operands = Operands.random(p, torch.Generator(device).manual_seed(zlib.crc32(case.label.encode())))
    normal = operands.input.clone(), operands.weight.clone()
    offers = [offer for contender in entered.values() for offer in contender.offers(p, operands)]
    calls: list[tuple[Offer, Callable[[], torch.Tensor]]] = []
    for offer in offers:
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
                yield Row(case, offer.provider, offer.algorithm, name, "ok", "", *errors)


def _not_run(case: Case, offer: Offer, magnitudes: str, reason: NotRunnable | UnsupportedProblem) -> Row:
    status = reason.status if isinstance(reason, NotRunnable) else "unsupported"
    return Row(case, offer.provider, offer.algorithm, magnitudes, status, str(reason))


def _run(options: argparse.Namespace) -> None:
    precision.set_for_process(FP32)
    sweep = load_sweep("paper", networks=options.net, batches=[BATCH])
    entered = {provider: load(provider) for provider in SHOWN}
    device = torch.device("cuda", torch.cuda.current_device())
    folder = options.out or environment.results_folder(SLICE if options.net else ACCURACY.folder)
    rows = measure(sweep.cases, entered, device, sweep.workspace_limit)
    path = ACCURACY.write(folder, (row.cells() for row in rows))
    environment.report_gpu(folder, options.typed, alone=True)
    print(tables_of(ACCURACY.read(path)))
    print(f"written: {path}")


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--net", nargs="+", metavar="NETWORK", help="a quick look at the layers of these networks of the paper alone")
    default = f"results/DEVICE/{ACCURACY.folder}, or results/DEVICE/{SLICE} with --net"
    add("--out", type=command.folder, help=f"results folder (default: {default})")


main = command.program(
    "harness.experiments accuracy", "Errors on data of far from ordinary magnitudes.", _run, _add_options
)
