"""Every configuration of every algorithm, timed in one precision: what the cost models of it are fitted to.

candidates.csv has a row for each: the case, the configuration as it prints, the time predicted when it was measured,
and microseconds of device time of each run. Only what gave the right output is in it.
"""

from __future__ import annotations

import csv
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.device import DeviceSpec
from cuconv.jit import Launch, LaunchSequence
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem
from harness.measure import timing
from harness.catalogue import Case
from harness.measure.compiling import Compiler, Form, forms_of
from harness.contenders import Operands
from harness.precision import FP32, TF32
from harness.results.records import CASE_COLUMNS, ResultsError
from harness.measure.verify import Verifier

RUNS = 3
COLUMNS = (
    *CASE_COLUMNS,
    "algorithm",
    "config",
    "predicted_us",
    *(f"run_{i}_us" for i in range(1, RUNS + 1)),
    "best_us",
)
TOLERANCES = {FP32: 1e-5, TF32: 1e-3}  # relative L2 error against float64; a wrong index gives 1, FP32 1e-6, TF32 3e-4
MAX_FLOP = 2e11  # of a case: beyond, nothing is learnt but throughput, at milliseconds a call
MAX_RATIO = 3.0  # of a predicted time over the algorithm's least on the case: others are not measured
PER_ALGORITHM = 16  # configurations of a case: the better half by prediction, the others drawn from what remains


class GpuLost(RuntimeError):
    """A kernel broke the CUDA context: nothing more can run in this process."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of an algorithm for a case, with its predicted time in microseconds."""

    algorithm: str
    config: Any
    predicted_us: float


def candidates_of(problem: ConvProblem, device: DeviceSpec, chance: random.Random) -> list[Candidate]:
    """What is worth measuring on a problem, of every algorithm that can compute it in its precision."""
    chosen = []
    for name in offering(problem.precision):
        module = ALGORITHMS[name]
        try:
            configs = module.candidates(problem, device)
        except UnsupportedProblem:
            continue
        found = [Candidate(name, config, module.predicted_us(problem, device, config)) for config in configs]
        found.sort(key=lambda candidate: candidate.predicted_us)
        found = [one for one in found if one.predicted_us <= MAX_RATIO * found[0].predicted_us]
        best, others = found[: PER_ALGORITHM // 2], found[PER_ALGORITHM // 2 :]
        chosen += best + chance.sample(others, min(len(others), PER_ALGORITHM - len(best)))
    return chosen


def measure(
    cases: Iterable[Case],
    device: torch.device,
    spec: DeviceSpec,
    path: Path,
    minutes: float,
    seed: int,
    precision: str = FP32,
) -> int:
    """Time the candidates of as many cases as the minutes allow, in an order shuffled by the seed, in a precision.

    Replaces the CSV file, row by row, so that what was measured is kept whatever happens. Returns the rows dropped
    because their output was wrong. Raises GpuLost.
    """
    torch.set_grad_enabled(False)
    cases = [case for case in cases if case.problem.flop <= MAX_FLOP]
    chance = random.Random(seed)
    chance.shuffle(cases)
    dropped, deadline = 0, _Deadline(minutes, len(cases))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file, Compiler(spec.arch) as compiler, deadline:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        plans = []
        for case in cases:
            problem = replace(case.problem, precision=precision)
            if found := candidates_of(problem, spec, chance):  # in TF32 nothing computes the largest filters
                plans.append((case, problem, found))
                compiler.start(_kernels(problem, found))
        for case, problem, found in plans:
            if deadline.passed(case.label):
                break
            compiler.wait_for(_kernels(problem, found))
            for candidate, runs_us in _time_problem(problem, found, device, spec, seed):
                if runs_us is None:
                    dropped += 1
                    continue
                times = [f"{us:.6g}" for us in (candidate.predicted_us, *runs_us, min(runs_us))]
                writer.writerow([*case.key, candidate.algorithm, candidate.config, *times])
            file.flush()
    return dropped


def _time_problem(
    problem: ConvProblem, found: list[Candidate], device: torch.device, spec: DeviceSpec, seed: int
) -> Iterable[tuple[Candidate, tuple[float, ...] | None]]:
    """Each candidate with its run times in microseconds, or with None where its output is wrong."""
    p, generator = problem, torch.Generator(device).manual_seed(seed)
    workspace_bytes = max(candidate.config.workspace_bytes for candidate in found)
    try:
        operands = Operands(
            torch.randn(p.input_shape, generator=generator, device=device),
            torch.randn(p.weight_shape, generator=generator, device=device),
            torch.empty(p.output_shape, device=device),
        )
        verifier = Verifier(p, operands, generator)
        workspace = torch.empty(workspace_bytes // FLOAT_BYTES + 1, device=device)
    except torch.OutOfMemoryError:
        tqdm.write(f"left out: {p.label}: its tensors do not fit in memory")
        return
    for candidate in found:
        what = f"{candidate.algorithm} {candidate.config} on {p.label}"
        try:
            call = _call(p, candidate, operands, workspace, spec)
            operands.output.fill_(torch.nan)
            error = verifier.errors(call()).rel_l2
            if not error <= TOLERANCES[p.precision]:
                tqdm.write(f"wrong, left out: {what}: relative L2 error {error:.3g}")
                yield candidate, None
                continue
            yield candidate, timing.measure(call, RUNS, device).runs_us
        except Exception as error:
            try:
                torch.cuda.synchronize()
            except Exception:
                raise GpuLost(f"{what} broke the CUDA context ({error}): the rows so far are kept") from error
            tqdm.write(f"failed, left out: {what}: {type(error).__name__}: {error}")
            yield candidate, None


def _call(
    problem: ConvProblem, candidate: Candidate, operands: Operands, workspace: torch.Tensor, spec: DeviceSpec
) -> Callable[[], torch.Tensor]:
    """A call of one configuration, on whatever stream is current when it is made."""
    device = operands.input.device
    sequence = LaunchSequence(_launches(problem, candidate), spec.arch, device.index)
    addresses = [tensor.data_ptr() for tensor in (operands.input, operands.weight)]

    def call() -> torch.Tensor:
        stream = torch.cuda.current_stream(device).cuda_stream
        sequence.enqueue(stream, *addresses, 0, operands.output.data_ptr(), workspace.data_ptr())
        return operands.output

    return call


def _launches(problem: ConvProblem, candidate: Candidate) -> tuple[Launch, ...]:
    return ALGORITHMS[candidate.algorithm].launches(problem, candidate.config, aligned=True, relu=False)


def _kernels(problem: ConvProblem, found: list[Candidate]) -> list[Form]:
    """What the candidates need compiled."""
    return forms_of(launch for candidate in found for launch in _launches(problem, candidate))


class _Deadline:
    """The time a measurement may take, and the progress bar that shows how much of it is left."""

    def __init__(self, minutes: float, cases: int):
        self._start, self._seconds, self._cases, self._begun = time.monotonic(), 60 * minutes, cases, -1

    def __enter__(self) -> _Deadline:
        self._bar = tqdm(total=1.0, bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed} elapsed, {remaining} left")
        return self

    def __exit__(self, *exception) -> None:
        self._bar.close()

    def passed(self, label: str) -> bool:
        """Whether no time is left for one more case, which is then the one that is shown."""
        self._begun += 1
        spent = (time.monotonic() - self._start) / self._seconds
        self._bar.set_description_str(f"case {self._begun + 1} of at most {self._cases} {label}", refresh=False)
        self._bar.n = min(1.0, max(spent, self._begun / self._cases))
        self._bar.refresh()
        return spent >= 1


def add_other_cases(path: Path, before: pd.DataFrame) -> None:
    """Add to a candidates.csv what was measured before of cases that are not in it."""
    measured, cases = (frame.set_index(list(CASE_COLUMNS)).index for frame in (read(path), before))
    before[~cases.isin(measured)].to_csv(path, mode="a", header=False, index=False)


def read(path: Path) -> pd.DataFrame:
    """The rows of a candidates.csv; raises ResultsError where it is missing or something else."""
    if not path.exists():
        raise ResultsError(f"{path} does not exist: measure first with 'python -m harness.tune' on a GPU")
    try:
        frame = pd.read_csv(path)
    except (ValueError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} is not readable as CSV ({error}): restore or delete it") from None
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise ResultsError(f"{path} lacks the column {missing[0]!r}: it is no candidates.csv of this project")
    return frame.dropna()
