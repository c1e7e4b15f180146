"""python -m harness.accuracy: errors of cuConv and cuDNN on the same data, where magnitudes are far from ordinary.

Every layer of the paper at a small batch, normal data times powers of ten that change over operands, channels, filters
or images. The error is ||out - ref|| / ||ref|| against float64; filters or images count alike where it is these that
are scaled. Prints a table and writes results/DEVICE/accuracy/accuracy.csv and the environment.json beside it. Needs a
GPU.
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
from tqdm import tqdm

from cuconv import reference
from cuconv.problem import ConvProblem, UnsupportedProblem
from harness import contenders, precision
from harness.results import environment
from harness import registry as roster
from harness.catalogue import Case, load_sweep
from harness.contenders import Contender, NotRunnable, Offer, Operands
from harness.report.markdown import NONE, markdown
from harness.precision import FP32
from harness.results.records import CASE_COLUMNS, ResultsError

FOLDER, CSV = "accuracy", "accuracy.csv"  # in results/DEVICE
COLUMNS = (*CASE_COLUMNS, "provider", "algorithm", "magnitudes", "status", "detail", "rel_l2_error")
ENTRANTS = ("cuconv", "cudnn")
PLAIN = ("cudnn", "implicit_gemm")  # a plain FP32 sum, twice whose error ours may have
BATCH = 4  # of the paper's layers: enough images to differ, and a batch of no sweep


@dataclass(frozen=True, slots=True)
class Factors:
    """What normal data are multiplied by, and what the output then is a multiple of: each broadcasts to its tensor."""

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
# Name -> factors of a problem. Balanced: so that every channel matters as much as any other.
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
    """What one algorithm did with one case's data; an error exists only where status is "ok"."""

    case: Case
    provider: str
    algorithm: str
    magnitudes: str
    status: str
    detail: str = ""
    rel_l2_error: float | None = None

    def cells(self) -> list[str]:
        """As text, in the order of COLUMNS."""
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
    """A row for each algorithm and each of MAGNITUDES of every case; workspace_limit in bytes."""
    torch.set_grad_enabled(False)
    cases = list(cases)
    for contender in entered.values():
        contender.begin([case.problem for case in cases], None)
    bar_format = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed} elapsed, {remaining} left"
    with tqdm(cases, bar_format=bar_format) as bar:
        for case in bar:
            bar.set_description_str(case.label, refresh=False)
            yield from _measure_case(case, entered, device, workspace_limit)


def _measure_case(
    case: Case, entered: Mapping[str, Contender], device: torch.device, workspace_limit: int
) -> Iterator[Row]:
    """The operands stay where they are, so that algorithms are prepared once; only what is in them changes."""
    p = case.problem
    generator = torch.Generator(device).manual_seed(zlib.crc32(case.label.encode()))
    normal = [torch.randn(shape, generator=generator, device=device) for shape in (p.input_shape, p.weight_shape)]
    operands = Operands(*map(torch.empty_like, normal), torch.empty(p.output_shape, device=device))
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
        truth = reference.conv2d(operands.input, operands.weight, (p.pad_h, p.pad_w))
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
    """accuracy.csv of a folder, replaced when all rows are there; returns its path."""
    frame = pd.DataFrame([row.cells() for row in rows], columns=list(COLUMNS))
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / CSV, index=False)
    return folder / CSV


def read(path: Path) -> pd.DataFrame:
    """The rows of an accuracy.csv; raises ResultsError where it is missing or something else."""
    if not path.exists():
        raise ResultsError(f"{path} does not exist: measure first with 'python -m harness.accuracy' on a GPU")
    try:
        frame = pd.read_csv(
            path, dtype={"rel_l2_error": float}, keep_default_na=False, na_values={"rel_l2_error": ["", "nan"]}
        )
    except (ValueError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} is not readable as CSV ({error}): restore or delete it") from None
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise ResultsError(f"{path} lacks the column {missing[0]!r}: it is no accuracy.csv of this project")
    return frame


def magnitudes_table(frame: pd.DataFrame) -> str:
    """Algorithms x magnitudes: median and worst error over the cases that ran, "bad" where an output is not finite.

    The last column: how often ours has more than twice the error of a plain FP32 sum, cuDNN's implicit_gemm, on the
    same data, of the cases where both are finite.
    """
    ran = frame[frame.status == "ok"]
    same = [*CASE_COLUMNS, "magnitudes"]
    plain = ran[(ran.provider == PLAIN[0]) & (ran.algorithm == PLAIN[1])].set_index(same).rel_l2_error.rename("plain")
    body = []
    for provider in ENTRANTS:
        for name in roster.PROVIDERS[provider].algorithms:
            mine = ran[(ran.provider == provider) & (ran.algorithm == name)].join(plain, on=same)
            if mine.empty:
                continue
            both = mine.dropna(subset=["rel_l2_error", "plain"])
            over = f"{int((both.rel_l2_error > 2 * both.plain).sum())} of {len(both)}" if provider == "cuconv" else NONE
            errors = [mine[mine.magnitudes == kind].rel_l2_error for kind in MAGNITUDES]
            body.append([roster.shown(provider, name), *map(_median_and_worst, errors), over])
    return markdown(["algorithm", *MAGNITUDES, "over 2x implicit_gemm"], body)


def _median_and_worst(errors: pd.Series) -> str:
    if errors.empty:
        return NONE
    bad = int(errors.isna().sum())
    found = f"{errors.median():.1e}, {errors.max():.1e}" if bad < len(errors) else ""
    return ", ".join(part for part in (found, f"{bad} bad" if bad else "") if part)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 2 where nothing can be measured."""
    parser = argparse.ArgumentParser(prog="python -m harness.accuracy", description="Errors on far from ordinary data.")
    parser.parse_args(arguments)
    precision.set_for_process(FP32)
    try:
        entered = {provider: contenders.load(provider) for provider in ENTRANTS}
    except contenders.Unavailable as reason:
        print(f"harness.accuracy: {reason}", file=sys.stderr)
        return 2
    sweep = load_sweep("paper", batches=[BATCH])
    device = torch.device("cuda", torch.cuda.current_device())
    folder = environment.ROOT / "results" / environment.device_slug() / FOLDER
    path = write(folder, measure(sweep.cases, entered, device, sweep.workspace_limit))
    environment.report_gpu(folder, environment.command_line("harness.accuracy", arguments), alone=True)
    print(magnitudes_table(read(path)))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
