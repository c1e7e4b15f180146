"""From measurements to comparisons: who was fastest on each case, and by how much a subject beats its rivals.

Everything here reads the frame of `records.read`. Only rows of precision "fp32" and status "ok" ever count; those of
"tf32" in `compare_with_tf32` alone.
A case is compared where a rival has a time; one that the subject could not run is then a case not won.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cuconv.problem import ConvProblem
from harness import registry as roster
from harness.precision import FP32, PRECISIONS, TF32
from harness.results.records import CASE_COLUMNS, ResultsError

CASE = list(CASE_COLUMNS)
AUTO = "auto"  # what the library chooses by itself
COMPARISON_COLUMNS = (
    *CASE_COLUMNS,
    "networks",
    "layers",
    "subject",
    "mean_us",
    "rival_provider",
    "rival_algorithm",
    "rival_us",
    "speedup",
    "cublas_us",
    "cublas_speedup",
    "floor_us",
)

# No GPU measured here can do better: FLOP/s with room for Winograd's savings, bytes/s, and one kernel.
FLOOR_FLOP_PER_S = 120e12
FLOOR_BYTES_PER_S = 4e12
FLOOR_KERNEL_US = 2.5


@dataclass(frozen=True, slots=True)
class Results:
    """One measurements.csv and whose it is: results/DEVICE/SWEEP/measurements.csv."""

    device: str
    sweep: str
    csv_path: Path


def find_results(root: Path, device: str | None = None, sweep: str | None = None) -> list[Results]:
    """Every measurements.csv under `root`, or those of one device or sweep, in order of their names.

    Raises ResultsError where there is none.
    """
    paths = sorted(root.glob(f"{device or '*'}/{sweep or '*'}/measurements.csv"))
    if not paths:
        raise ResultsError(
            f"no {device or 'DEVICE'}/{sweep or 'SWEEP'}/measurements.csv under {root}: "
            "measure first with 'python -m harness.run'"
        )
    return [Results(path.parent.parent.name, path.parent.name, path) for path in paths]


def timed(frame: pd.DataFrame, *precisions: str) -> pd.DataFrame:
    """The rows of these accuracy classes that may win: verified and timed."""
    return frame[frame.precision.isin(precisions) & (frame.status == "ok") & frame.mean_us.notna()]


def full_precision(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that may win a comparison in FP32."""
    return timed(frame, FP32)


def algorithms(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """(provider, algorithm) of each row."""
    return list(zip(rows.provider, rows.algorithm, strict=True))


def rivals(frame: pd.DataFrame, device: str) -> pd.DataFrame:
    """The rows of the algorithms that the subjects of this device are compared with."""
    is_rival = roster.comparison(device).is_rival
    mask = [is_rival(*pair) for pair in algorithms(frame)]
    return frame[np.array(mask, dtype=bool)]  # an empty list would select no columns


def fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per case, the one of smallest mean_us; of equal times the first in the roster's order."""
    rank = {pair: roster_order(*pair) for pair in set(algorithms(rows))}
    position = {pair: i for i, pair in enumerate(sorted(rank, key=rank.get))}
    ordered = rows.assign(order=[position[pair] for pair in algorithms(rows)])
    ordered = ordered.sort_values([*CASE, "mean_us", "order"]).drop(columns="order")
    return ordered.drop_duplicates(CASE).reset_index(drop=True)


def roster_order(provider: str, algorithm: str) -> tuple[int, int, str]:
    """A sort key: providers as in the roster, their named algorithms first, discovered ones after, by name."""
    known = list(roster.PROVIDERS)
    named = roster.PROVIDERS[provider].algorithms if provider in known else ()
    at = named.index(algorithm) if algorithm in named else len(named)
    return (known.index(provider) if provider in known else len(known), at, algorithm)


def compare(frame: pd.DataFrame, device: str, ours: str = FP32, theirs: tuple[str, ...] = (FP32,)) -> pd.DataFrame:
    """One row per case and subject, columns COMPARISON_COLUMNS, in order of subject, filter, batch and layer.

    `device` is the folder's name under results/. Times in microseconds. Absent values are NaN: mean_us where the
    subject has no time, rival_us where no rival has one, speedup (rival_us / mean_us) where either is missing,
    floor_us on a CPU. A subject without a single row in the frame has none here. `ours` is the class of the
    subjects, `theirs` are those of which rivals, and cuBLAS, may be.
    """
    who = roster.comparison(device)
    others = timed(frame, *theirs)
    cases = frame.drop_duplicates(CASE)[[*CASE, "networks", "layers"]]
    cases = cases.assign(floor_us=[_floor_us(case, device) for case in cases[CASE].itertuples()])
    best = fastest(rivals(others, device))[[*CASE, "provider", "algorithm", "mean_us"]]
    best = best.rename(columns={"provider": "rival_provider", "algorithm": "rival_algorithm", "mean_us": "rival_us"})
    cublas = fastest(others[others.provider == "cublas"])[[*CASE, "mean_us"]].rename(columns={"mean_us": "cublas_us"})
    cases = cases.merge(best, on=CASE, how="left").merge(cublas, on=CASE, how="left")

    mine, parts = timed(frame, ours), []
    for subject in who.subjects:
        if not ((frame.provider == who.provider) & (frame.algorithm == subject)).any():
            continue
        rows = mine[(mine.provider == who.provider) & (mine.algorithm == subject)]
        part = cases.merge(rows[[*CASE, "mean_us"]], on=CASE, how="left").assign(subject=subject)
        parts.append(part.sort_values(["k", "batch", "h", "w", "m", "c", "pad"]))
    if not parts:
        return pd.DataFrame(columns=list(COMPARISON_COLUMNS))
    table = pd.concat(parts, ignore_index=True)
    table["speedup"] = table.rival_us / table.mean_us
    table["cublas_speedup"] = table.cublas_us / table.mean_us
    return table[list(COMPARISON_COLUMNS)]


def compare_with_tf32(frame: pd.DataFrame, device: str, ours: str = FP32) -> pd.DataFrame:
    """`compare` with rivals that may round to TF32: the best of both classes, since who allows TF32 may get either.

    The device's first subject, on the cases on which a rival has a time with TF32 allowed; nothing where it has no row
    of its class.
    """
    subject = (frame.provider == roster.comparison(device).provider) & (frame.precision == ours)
    if not subject.any():
        return pd.DataFrame(columns=list(COMPARISON_COLUMNS))
    measured = fastest(rivals(timed(frame, TF32), device))[CASE]
    table = compare(frame.merge(measured, on=CASE), device, ours, PRECISIONS)
    return table[table.subject == roster.comparison(device).subjects[0]]


def _floor_us(case, device: str) -> float:
    if device == "cpu":
        return math.nan
    problem = problem_of(case)
    return max(1e6 * problem.flop / FLOOR_FLOP_PER_S, 1e6 * problem.min_bytes / FLOOR_BYTES_PER_S, FLOOR_KERNEL_US)


def is_memory_bound(problem: ConvProblem) -> bool:
    """Whether the floor by bytes is above that by FLOP."""
    return problem.min_bytes / FLOOR_BYTES_PER_S > problem.flop / FLOOR_FLOP_PER_S


def choice(frame: pd.DataFrame, device: str, precision: str = FP32) -> pd.DataFrame:
    """auto beside the best of the library's own algorithms: one row per case where both have a time.

    Columns: the case, mean_us of auto, best_us, best_algorithm, and behind = mean_us / best_us. Timed apart, auto may
    be a little faster than the very algorithm that it chose: behind is then below 1.
    """
    mine = timed(frame, precision)
    ours = mine[mine.provider == roster.comparison(device).provider]
    best = fastest(ours[ours.algorithm != AUTO])[[*CASE, "algorithm", "mean_us"]]
    best = best.rename(columns={"algorithm": "best_algorithm", "mean_us": "best_us"})
    table = ours[ours.algorithm == AUTO][[*CASE, "mean_us"]].merge(best, on=CASE)
    return table.assign(behind=table.mean_us / table.best_us)


def problem_of(case) -> ConvProblem:
    """The convolution of a row, given as a named tuple or series with the case columns."""
    return ConvProblem(case.batch, case.c, case.h, case.w, case.m, case.k, case.k, case.pad, case.pad)


def layer_label(case) -> str:
    """The paper's HW-M-C; HxW where not square, and the padding where it is not the usual (K-1)/2."""
    size = str(case.h) if case.h == case.w else f"{case.h}x{case.w}"
    padding = "" if 2 * case.pad == case.k - 1 else f" p{case.pad}"
    return f"{size}-{case.m}-{case.c}{padding}"


def geometric_mean(values) -> float:
    """Of positive values, NaN left out; NaN where none is left."""
    values = np.asarray(values, dtype=float)
    values = values[~np.isnan(values)]
    return float(np.exp(np.log(values).mean())) if values.size else math.nan


@dataclass(frozen=True, slots=True)
class Summary:
    """A set of compared cases: won (speedup above 1) `wins` of `of`; means over those that the subject ran.

    `of` counts every case with a rival's time. `at` labels the case of the largest speedup. Means are NaN and
    `at` is empty where there is no speedup.
    """

    wins: int
    of: int
    geometric: float
    arithmetic: float
    maximum: float
    at: str


def summarise(rows: pd.DataFrame) -> Summary:
    """The summary of some rows of `compare`; of equal maxima the first row names the case.

    `at` is HW-M-C where all rows are of one batch and filter size, else HW-N-K-M-C.
    """
    compared = rows[rows.rival_us.notna()]
    speedups = compared.speedup.dropna()
    if speedups.empty:
        return Summary(0, len(compared), math.nan, math.nan, math.nan, "")
    best = compared.loc[speedups.idxmax()]
    one_group = rows.batch.nunique() == 1 and rows.k.nunique() == 1
    return Summary(
        wins=int((speedups > 1).sum()),
        of=len(compared),
        geometric=geometric_mean(speedups),
        arithmetic=float(speedups.mean()),
        maximum=float(best.speedup),
        at=layer_label(best) if one_group else problem_of(best).label,
    )
