"""Configurations of every algorithm, timed on a GPU in one precision: the data that the cost models are fitted to.

candidates.csv.gz has a row for each candidate: the case, the configuration as it prints, the time that was predicted
when it was measured, and the device time of each run in microseconds. A candidate with a wrong output has no row.
"""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import CallOptions
from cuconv.core.launch import Launch
from cuconv.core.problem import FLOAT_BYTES, TF32_LAST, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec
from cuconv.runtime.launch_sequence import LaunchSequence
from harness import progress
from harness.cases.catalogue import Case
from harness.contenders.base import Operands
from harness.contenders.compiling import compile_launches
from harness.contenders.cuconv_gpu import laid_out
from harness.precision import BF16, FP16, FP32, TF32
from harness.stopwatch import timing
from harness.stopwatch.gpu import check_alive, out_of_memory
from harness.stopwatch.verify import Verifier
from harness.store.csv_file import ABSENT_GEOMETRY
from harness.store.table import Table, wide
from harness.sweep.records import CASE_COLUMNS

RUNS = 3
RUN_COLUMNS = tuple(f"run_{i}_us" for i in range(1, RUNS + 1))
# Relative L2 error against float64: a wrong index gives 1, FP32 1e-6, TF32 3e-4, and one rounding 2e-4 or 2e-3.
TOLERANCES = {FP32: 1e-5, TF32: 1e-3, TF32_LAST: 1e-3, FP16: 1e-3, BF16: 8e-3}
MAX_FLOP = 2e11  # larger cases show nothing but throughput, at milliseconds a call
MAX_RATIO = 3.0  # ratio of predicted times, to the algorithm's fastest, above which a candidate is left out
GROUP = 32  # cases whose kernels are compiled together, on a machine of 16 cores in about a minute
PER_ALGORITHM = 16  # candidates of an algorithm on a case: half are the best by prediction, half are drawn at random


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCandidate:
    """A row of candidates.csv.gz: the key of a case, a configuration as it prints, and its times in microseconds."""

    case: Annotated[tuple[int, ...], wide(CASE_COLUMNS)]
    algorithm: str
    config: str
    predicted_us: float
    runs_us: Annotated[tuple[float, ...], wide(RUN_COLUMNS)]
    best_us: float


CANDIDATES = Table("tune", "candidates.csv.gz", TimedCandidate, "harness tune", ABSENT_GEOMETRY, digits=6)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of an algorithm for a case, with its predicted time in microseconds."""

    algorithm: str
    config: Any
    predicted_us: float


def candidates_of(problem: ConvProblem, device: DeviceSpec, chance: random.Random) -> list[Candidate]:
    """The configurations that are worth timing on a problem, of all algorithms that compute it in its precision.

    Those that would run a less special kernel than the models are of, since that is of the closed set, are left out.
    """
    chosen = []
    for name in offering(problem.precision):
        algorithm = ALGORITHMS[name]
        try:
            configs = algorithm.candidates(problem, device)
        except UnsupportedProblem:
            continue
        special = [one for one in configs if algorithm.slowdown(problem, device, one, CallOptions()) in (1, inf)]
        found = [Candidate(name, config, algorithm.predicted_us(problem, device, config)) for config in special]
        found.sort(key=lambda candidate: candidate.predicted_us)
        found = [one for one in found if one.predicted_us <= MAX_RATIO * found[0].predicted_us]
        best, others = found[: PER_ALGORITHM // 2], found[PER_ALGORITHM // 2 :]
        chosen += best + chance.sample(others, min(len(others), PER_ALGORITHM - len(best)))
    return chosen


@torch.no_grad()
def measure(
    cases: Iterable[Case],
    device: torch.device,
    spec: DeviceSpec,
    path: Path,
    minutes: float,
    seed: int,
    precision: str = FP32,
) -> int:
    """Time the candidates of as many cases as the minutes allow, and return how many were left out as wrong or failed.

    The seed shuffles the order of the cases. The CSV file at `path` is replaced, and flushed after each case, so that
    an interrupted measurement keeps its rows. Raises GpuLost.
    """
    cases = [case for case in cases if case.problem.flop <= MAX_FLOP]
    chance = random.Random(seed)
    chance.shuffle(cases)
    dropped, deadline = 0, _Deadline(minutes, len(cases))
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file, deadline:
        file.write(CANDIDATES.content(()))
        for case, problem, found in _compiled(cases, spec, chance, precision):
            if deadline.passed(case.label):
                break
            for candidate, runs_us in _timed(problem, found, device, spec, seed):
                if runs_us is None:
                    dropped += 1
                    continue
                row = TimedCandidate(
                    case=case.key, algorithm=candidate.algorithm, config=str(candidate.config),
                    predicted_us=candidate.predicted_us, runs_us=runs_us, best_us=min(runs_us),
                )  # fmt: skip
                file.write(CANDIDATES.line(CANDIDATES.cells(row)))
            file.flush()
    return dropped


def _compiled(
    cases: Sequence[Case], spec: DeviceSpec, chance: random.Random, precision: str
) -> Iterable[tuple[Case, ConvProblem, list[Candidate]]]:
    """Each case with its candidates, in groups: nothing compiles while a group's candidates are timed."""
    for first in range(0, len(cases), GROUP):
        group = []
        for case in cases[first : first + GROUP]:
            problem = replace(case.problem, precision=precision)
            if found := candidates_of(problem, spec, chance):  # in TF32 no algorithm computes the largest filters
                group.append((case, problem, found))
        compile_launches((one for _, p, found in group for each in found for one in _launches(p, each)), spec.arch)
        yield from group


def _timed(
    problem: ConvProblem, found: list[Candidate], device: torch.device, spec: DeviceSpec, seed: int
) -> Iterable[tuple[Candidate, tuple[float, ...] | None]]:
    """Each candidate with its run times in microseconds, or with None where it failed or its output is wrong."""
    p, generator = problem, torch.Generator(device).manual_seed(seed)
    workspace_bytes = max(candidate.config.workspace_bytes for candidate in found)
    try:
        shared = Operands.random(p, generator)
        verifier = Verifier(p, shared.input, shared.weight, generator)
        operands = laid_out(shared, p.precision)
        workspace = torch.empty(workspace_bytes // FLOAT_BYTES + 1, device=device)
    except Exception as error:
        if not out_of_memory(error):
            raise
        progress.say(f"left out: {p.label}: its tensors do not fit in memory")
        return
    for candidate in found:
        what = f"{candidate.algorithm} {candidate.config} on {p.label}"
        try:
            call = prepare(p, candidate, operands, workspace, spec)
            operands.output.fill_(torch.nan)
            rel_l2 = verifier.errors(call()).rel_l2
            if not rel_l2 <= TOLERANCES[p.precision]:
                progress.say(f"wrong, left out: {what}: relative L2 error {rel_l2:.3g}")
                yield candidate, None
                continue
            yield candidate, timing.measure(call, RUNS, device).runs_us
        except Exception as error:
            check_alive(what, error)
            progress.say(f"failed, left out: {what}: {type(error).__name__}: {error}")
            yield candidate, None


def prepare(
    problem: ConvProblem, candidate: Candidate, operands: Operands, workspace: torch.Tensor, spec: DeviceSpec
) -> Callable[[], torch.Tensor]:
    """A function that enqueues one candidate on torch's current stream and returns its output."""
    device = operands.input.device
    sequence = LaunchSequence(_launches(problem, candidate), spec.arch, device.index)
    input_at, weight_at, bias_at = operands.input.data_ptr(), operands.weight.data_ptr(), 0
    output_at, workspace_at = operands.output.data_ptr(), workspace.data_ptr()

    def call() -> torch.Tensor:
        stream = torch.cuda.current_stream(device).cuda_stream
        sequence.enqueue(stream, input_at, weight_at, bias_at, output_at, workspace_at)
        return operands.output

    return call


def _launches(problem: ConvProblem, candidate: Candidate) -> tuple[Launch, ...]:
    return ALGORITHMS[candidate.algorithm].launches(problem, candidate.config)


class _Deadline:
    """The time that a measurement may take, and the progress bar that shows how much of it has passed."""

    def __init__(self, minutes: float, cases: int):
        self._start, self._seconds, self._cases, self._begun = time.monotonic(), 60 * minutes, cases, 0

    def __enter__(self) -> _Deadline:
        self._bar = progress.weighed(1.0)
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def passed(self, label: str) -> bool:
        """Whether there is no time for one more case; shows the case's label in the progress bar."""
        spent = (time.monotonic() - self._start) / self._seconds
        done = min(1.0, max(spent, self._begun / self._cases))
        self._begun += 1
        self._bar.set_description_str(f"case {self._begun} of at most {self._cases} {label}", refresh=False)
        self._bar.update(done - self._bar.n)
        return spent >= 1


def add_other_cases(path: Path, before: pd.DataFrame) -> None:
    """Append to a candidates.csv.gz those rows of an earlier measurement whose cases it does not have."""
    measured, cases = (frame.set_index(list(CASE_COLUMNS)).index for frame in (read(path), before))
    before.loc[~cases.isin(measured), list(CANDIDATES.columns)].to_csv(path, mode="a", header=False, index=False)


def read(path: Path) -> pd.DataFrame:
    """The complete rows of a candidates.csv.gz; raises ResultsError where it is missing or is something else."""
    return CANDIDATES.read(path).dropna()
