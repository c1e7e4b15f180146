"""python -m harness.measure.accuracy: errors of cuConv and cuDNN on data whose magnitudes are far from ordinary.

The cases are every layer of the paper at a small batch. The data are normal numbers times powers of ten that change
over operands, channels, filters or images. The error is ||out - ref|| / ||ref|| against float64. Where filters or
images are scaled, each is divided by its scale first, so that all count alike. Prints a table and writes
results/DEVICE/accuracy/accuracy.csv and the environment.json beside it. Needs a GPU.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path

import pandas as pd
import torch

from cuconv import reference
from cuconv.problem import ConvProblem, UnsupportedProblem
from harness import command, contenders, precision, progress
from harness.catalogue import Case, load_sweep
from harness.contenders import Contender, NotRunnable, Offer, Operands
from harness.precision import FP32
from harness.report.magnitudes import SHOWN, magnitudes_table
from harness.results import environment
from harness.results.accuracy import COLUMNS, CSV, FOLDER, read
from harness.results.files import write_whole

BATCH = 4  # of the paper's layers: enough images to differ, and a batch size of no sweep


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of normal input and weights, and the scale of the output: each broadcasts to its tensor."""

    input: torch.Tensor
    weight: torch.Tensor
    output: torch.Tensor


def _powers(exponent: float, count: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Powers of ten from -exponent to exponent, along the axis of `shape` that is -1."""
    return torch.logspace(-exponent, exponent, count).view(shape)


def _factors(
    input: float | torch.Tensor = 1.0, weight: float | torch.Tensor = 1.0, output: float | torch.Tensor = 1.0
) -> Factors:
    return Factors(*(torch.as_tensor(factor) for factor in (input, weight, output)))


CHANNELS, FILTERS, IMAGES, PLANES = (1, -1, 1, 1), (-1, 1, 1, 1), (-1, 1, 1, 1), (1, -1, 1, 1)
# The factors of a problem by name. "balanced": every channel contributes alike to the sum.
MAGNITUDES: dict[str, Callable[[ConvProblem], Factors]] = {
    "ordinary": lambda p: _factors(),
    "input 1e30": lambda p: _factors(1e30, 1e-30),
    "input 1e-30": lambda p: _factors(1e-30, 1e30),
    "channels balanced": lambda p: _factors(_powers(18, p.c, CHANNELS), 1 / _powers(18, p.c, CHANNELS)),
    "channels of input": lambda p: _factors(_powers(4, p.c, CHANNELS)),
    "channels of weights": lambda p: _factors(1.0, _powers(4, p.c, CHANNELS)),
    "filters": lambda p: _factors(1.0, _powers(15, p.m, FILTERS), _powers(15, p.m, PLANES)),
    "images": lambda p: _factors(_powers(4, p.n, IMAGES), 1.0, _powers(4, p.n, IMAGES)),
}


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

    def cells(self) -> list[str]:
        """The row as text, in the order of COLUMNS."""
        error = "" if self.rel_l2_error is None else f"{self.rel_l2_error:.9g}"
        detail = " ".join(self.detail.split())
        return [*map(str, self.case.key), self.provider, self.algorithm, self.magnitudes, self.status, detail, error]


def relative_error(output: torch.Tensor, truth: torch.Tensor, unit: torch.Tensor) -> float:
    """||output - truth|| / ||truth||, both in multiples of `unit`; NaN where an output is not finite."""
    difference = (output.double() - truth) / unit
    error = float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(truth / unit))
    return error if isfinite(error) else nan


def measure(
    cases: Iterable[Case], entered: Mapping[str, Contender], device: torch.device, workspace_limit: int
) -> Iterator[Row]:
    """A row for each algorithm and each of MAGNITUDES of every case; workspace_limit is in bytes."""
    torch.set_grad_enabled(False)
    cases = list(cases)
    for contender in entered.values():
        contender.begin([case.problem for case in cases], None)
    with progress.counted(cases) as bar:
        for case in bar:
            bar.set_description_str(case.label, refresh=False)
            yield from _measure_case(case, entered, device, workspace_limit)


def _measure_case(
    case: Case, entered: Mapping[str, Contender], device: torch.device, workspace_limit: int
) -> Iterator[Row]:
    """The rows of a case. Its tensors stay in place and are refilled, so that a call is prepared only once."""
    p = case.problem
    operands = Operands.random(p, torch.Generator(device).manual_seed(zlib.crc32(case.label.encode())))
    normal = operands.input.clone(), operands.weight.clone()
    offers = [offer for contender in entered.values() for offer in contender.offers(p, operands, workspace_limit)]
    calls: list[tuple[Offer, Callable[[], torch.Tensor]]] = []
    for offer in offers:
        try:
            calls.append((offer, offer.prepare().call))
        except (NotRunnable, UnsupportedProblem) as reason:
            for name in MAGNITUDES:
                yield _not_run(case, offer, name, reason)
    for name, factors_of in MAGNITUDES.items():
        factors = factors_of(p)
        torch.mul(normal[0], factors.input.to(device), out=operands.input)
        torch.mul(normal[1], factors.weight.to(device), out=operands.weight)
        truth = reference.conv2d(operands.input, operands.weight, **p.geometry)
        unit = factors.output.to(device, torch.float64)
        for offer, call in calls:
            operands.output.fill_(torch.nan)
            try:
                error = relative_error(call(), truth, unit)
            except (NotRunnable, UnsupportedProblem) as reason:
                yield _not_run(case, offer, name, reason)
            else:
                yield Row(case, offer.provider, offer.algorithm, name, "ok", rel_l2_error=error)


def _not_run(case: Case, offer: Offer, magnitudes: str, reason: NotRunnable | UnsupportedProblem) -> Row:
    status = reason.status if isinstance(reason, NotRunnable) else "unsupported"
    return Row(case, offer.provider, offer.algorithm, magnitudes, status, str(reason))


def write(folder: Path, rows: Iterable[Row]) -> Path:
    """Write accuracy.csv of a folder when all rows are there, replacing it; returns its path."""
    frame = pd.DataFrame([row.cells() for row in rows], columns=list(COLUMNS))
    write_whole(folder / CSV, frame.to_csv(index=False))
    return folder / CSV


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 for a lost GPU, 2 where nothing can be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.measure.accuracy", description="Errors on data of far from ordinary magnitudes."
    )
    parser.parse_args(arguments)
    precision.set_for_process(FP32)
    return command.exit_code("harness.measure.accuracy", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> None:
    entered = {provider: contenders.load(provider) for provider in SHOWN}
    sweep = load_sweep("paper", batches=[BATCH])
    device = torch.device("cuda", torch.cuda.current_device())
    folder = environment.results_folder(FOLDER)
    path = write(folder, measure(sweep.cases, entered, device, sweep.workspace_limit))
    environment.report_gpu(folder, environment.command_line("harness.measure.accuracy", arguments), alone=True)
    print(magnitudes_table(read(path)))
    print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main())
