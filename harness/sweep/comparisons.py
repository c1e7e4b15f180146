"""From measurements to comparisons: the fastest algorithm of each case, and the speedup of a subject over its rivals.

Only verified and timed rows (status "ok") count. A comparison in FP32 looks at rows of precision "fp32" alone;
`compare_with_tf32` lets rivals be of either precision. A case is compared where a rival has a time: a case that the
subject could not run counts as not won.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cuconv.core.problem import ConvProblem
from harness.contenders import registry
from harness.errors import ResultsError
from harness.precision import FP32, PRECISIONS, TF32
from harness.store.csv_file import GEOMETRY
from harness.store.files import stored
from harness.store.markdown import extent
from harness.store.times import HOT, TIMES, at_time, hot_runs
from harness.sweep import records
from harness.sweep.records import CASE_COLUMNS, CSV

CASE = list(CASE_COLUMNS)
FILTER = ["k", "kw"]  # the filter size
LAYER = ["h", "w", "m", "c", *GEOMETRY, "pad", "pad_w"]  # what tells layers of one batch and filter size apart
AUTO, BATCH_INVARIANT = "auto", "batch_invariant"  # the library's own choices among its algorithms
CPU = "cpu"
TIMES_PLAIN = 2  # the largest error that is FP32's, over that of cuDNN's implicit_gemm
NEARLY_ALL = 0.95  # as a share of a sweep's cases
COMPARISON_COLUMNS = (
    *CASE_COLUMNS,
    "networks",
    "layers",
    "subject",
    "mean_us",
    "least_us",
    "most_us",
    "rival_provider",
    "rival_algorithm",
    "rival_us",
    "speedup",
    *(f"{name}_{what}" for name in registry.BESIDE for what in ("us", "speedup")),
    "yardstick_us",
)

# A fixed yardstick for the time of a case on a GPU: the largest of the times by FLOP/s, by bytes/s, and of one kernel.
YARDSTICK_FLOP_PER_S = 120e12
YARDSTICK_BYTES_PER_S = 4e12
YARDSTICK_KERNEL_US = 2.5


@dataclass(frozen=True)
class Results:
    """The measurements of one device and sweep.

    device: its folder's name under results/, "cpu" or a GPU's. frame: rows as `records.read` returns them. folder:
    results/DEVICE/SWEEP. time: which of a row's times mean_us and the runs are, one of times.TIMES. chosen: the
    (provider, algorithm) that is compared with the rivals, None for the library's.
    """

    device: str
    sweep: str
    frame: pd.DataFrame
    folder: Path
    time: str = HOT
    chosen: tuple[str, str] | None = None

    @classmethod
    def read(cls, folder: Path, chosen: tuple[str, str] | None = None) -> Results:
        """The measurements in results/DEVICE/SWEEP. Raises ResultsError where its CSV file is missing or wrong."""
        return cls(folder.parent.name, folder.name, records.read(folder / CSV), folder, chosen=chosen)

    def at(self, time: str) -> Results:
        """The same rows with their hot, separated or cold times; these results must be hot."""
        return replace(self, frame=at_time(self.frame, time), time=time)

    def beside(self, sweep: str) -> Results | None:
        """A sweep of the same device, this one or another, which is read once; None where it was not measured."""
        if sweep not in self._beside:
            folder = self.folder.with_name(sweep)
            self._beside[sweep] = Results.read(folder, self.chosen) if folder.exists() else None
        return self._beside[sweep]

    @cached_property
    def _beside(self) -> dict[str, Results | None]:
        return {self.sweep: self}

    @cached_property
    def every_time(self) -> list[Results]:
        """These hot results, and the separated and the cold ones where the sweep has them.

        It has them where the first subject has a speedup in both on nearly all of its cases. A part of a sweep that
        was measured later would give means of other cases than the hot ones.
        """
        found = [self, *(self.at(time) for time in TIMES if time != HOT)]
        cases = [int(one.of_subject().speedup.notna().sum()) for one in found]
        return found if 0 < NEARLY_ALL * cases[0] <= min(cases) else [self]

    @property
    def csv_path(self) -> Path:
        """The file that the rows come from."""
        return stored(self.folder / CSV)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU was measured."""
        return self.device != CPU

    @cached_property
    def comparison(self) -> registry.Comparison:
        """The subjects and the rivals on this device."""
        return registry.comparison(self.device, self.chosen)

    @property
    def subject(self) -> str:
        """The first subject: the library's own choice on a GPU."""
        return self.comparison.subjects[0]

    @cached_property
    def compared(self) -> pd.DataFrame:
        """`compare` in FP32, computed once."""
        return compare(self)

    def of_subject(self) -> pd.DataFrame:
        """The rows of `compared` of the first subject."""
        return self.compared[self.compared.subject == self.subject]

    def shown(self, subject: str) -> str:
        """The name of a subject with its provider's label, such as "cuConv auto"."""
        return registry.shown(self.comparison.provider, subject)


def find_results(
    root: Path, device: str | None = None, sweep: str | None = None, subject: tuple[str, str] | None = None
) -> list[Results]:
    """Every results/DEVICE/SWEEP under `root`, or those of one device or sweep, in order of their names.

    subject: the (provider, algorithm) to compare with the rivals; only results that have rows of it are returned.
    Raises ResultsError where there is none, or where one cannot be read.
    """
    folders = [
        folder
        for each_device in sorted(root.glob("*/"))
        for folder in sweeps_of(each_device)
        if device in (None, folder.parent.name) and sweep in (None, folder.name)
    ]
    if not folders:
        raise ResultsError(
            f"no {device or 'DEVICE'}/{sweep or 'SWEEP'}/measurements.csv under {root}: "
            "measure first with 'python -m harness.run'"
        )
    found = [Results.read(folder, subject) for folder in folders]
    if subject is None:
        return found
    with_rows = [results for results in found if subject in set(algorithms(results.frame))]
    if not with_rows:
        named = "/".join(subject)
        raise ResultsError(
            f"{named} has no row in these results: measure it with '{registry.how_to_measure(subject[0])}'"
        )
    return with_rows


def sweeps_of(device: Path) -> list[Path]:
    """The folders of results/DEVICE that have measurements, in order of their names."""
    return [folder for folder in sorted(device.glob("*/")) if stored(folder / CSV).exists()]


def each(rows: pd.DataFrame) -> Iterator[Any]:
    """Each row as a named tuple. Type checkers cannot know the types of its cells."""
    return iter(rows.itertuples())


def grouped(rows: pd.DataFrame, by: str | list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """(key, rows) of each group, in order of the keys; subjects in the order of their rows."""
    return iter(rows.groupby(by, sort=by != "subject"))


def timed(frame: pd.DataFrame, *precisions: str) -> pd.DataFrame:
    """The rows of these precisions that were verified and timed."""
    return frame[frame.precision.isin(precisions) & (frame.status == "ok") & frame.mean_us.notna()]


def full_precision(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that may win a comparison in FP32."""
    return timed(frame, FP32)


def algorithms(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """(provider, algorithm) of each row."""
    return list(zip(rows.provider, rows.algorithm, strict=True))


def rivals(frame: pd.DataFrame, comparison: registry.Comparison) -> pd.DataFrame:
    """The rows of the algorithms that the subjects are compared with."""
    mask = [comparison.is_rival(*pair) for pair in algorithms(frame)]
    return frame[np.array(mask, dtype=bool)]  # an empty list would select no columns


def fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per case, the one of smallest mean_us. Of equal times, the first in the registry's order."""
    pairs = algorithms(rows)
    position = {pair: i for i, pair in enumerate(sorted(set(pairs), key=lambda pair: display_order(*pair)))}
    ordered = rows.assign(order=[position[pair] for pair in pairs])
    ordered = ordered.sort_values([*CASE, "mean_us", "order"]).drop(columns="order")
    return ordered.drop_duplicates(CASE).reset_index(drop=True)


def display_order(provider: str, algorithm: str) -> tuple[int, int, str]:
    """A sort key: providers as in the registry, their named algorithms first, the others after them by name."""
    known = list(registry.PROVIDERS)
    named = registry.PROVIDERS[provider].algorithms if provider in known else ()
    at = named.index(algorithm) if algorithm in named else len(named)
    return (known.index(provider) if provider in known else len(known), at, algorithm)


def compare(results: Results, ours: str = FP32, theirs: tuple[str, ...] = (FP32,)) -> pd.DataFrame:
    """One row per case and subject, columns COMPARISON_COLUMNS, in order of subject, filter, batch and layer.

    ours: the precision of the subjects. theirs: the precisions that rivals and other contenders may be of.

    Times are in microseconds: least_us and most_us are of the subject's runs, mean_us is their mean. Absent values
    are NaN: the subject's times where it has none, rival_us where no rival has one, speedup (rival_us / mean_us) where
    either is missing, yardstick_us on a CPU. A subject that computes none of the cases has no row.
    """
    frame, who = results.frame, results.comparison
    others = timed(frame, *theirs)
    cases = frame.drop_duplicates(CASE)[[*CASE, "networks", "layers"]]
    yardsticks = [_yardstick_us(case) if results.on_gpu else math.nan for case in each(cases[CASE])]
    cases = cases.assign(yardstick_us=yardsticks)
    best = fastest(rivals(others, who))[[*CASE, "provider", "algorithm", "mean_us"]]
    best = best.rename(columns={"provider": "rival_provider", "algorithm": "rival_algorithm", "mean_us": "rival_us"})
    cases = cases.merge(best, on=CASE, how="left")
    for name in registry.BESIDE:
        beside = fastest(others[others.provider == name])[[*CASE, "mean_us"]]
        cases = cases.merge(beside.rename(columns={"mean_us": f"{name}_us"}), on=CASE, how="left")

    runs = hot_runs(timed(frame, ours))
    mine, parts = timed(frame, ours).assign(least_us=runs.min(axis=1), most_us=runs.max(axis=1)), []
    for subject in who.subjects:
        entered = frame[(frame.provider == who.provider) & (frame.status != "unsupported")]
        if not (entered.algorithm == subject).any():
            continue
        rows = mine[(mine.provider == who.provider) & (mine.algorithm == subject)]
        part = cases.merge(rows[[*CASE, "mean_us", "least_us", "most_us"]], on=CASE, how="left")
        parts.append(part.assign(subject=subject).sort_values([*FILTER, "batch", *LAYER]))
    if not parts:
        return pd.DataFrame(columns=list(COMPARISON_COLUMNS))
    table = pd.concat(parts, ignore_index=True)
    table["speedup"] = table.rival_us / table.mean_us
    for name in registry.BESIDE:
        table[f"{name}_speedup"] = table[f"{name}_us"] / table.mean_us
    return table[list(COMPARISON_COLUMNS)]


def compare_with_tf32(results: Results, ours: str = FP32) -> pd.DataFrame:
    """`compare` of the first subject with rivals that may round to TF32: the fastest of either precision counts.

    Has the cases on which a rival has a time in TF32, and no row where the subject has none of its precision.
    """
    frame, who = results.frame, results.comparison
    if not ((frame.provider == who.provider) & (frame.precision == ours)).any():
        return pd.DataFrame(columns=list(COMPARISON_COLUMNS))
    measured = fastest(rivals(timed(frame, TF32), who))[CASE]
    shared = replace(results, frame=frame.merge(measured, on=CASE))
    table = compare(shared, ours, PRECISIONS)
    return table[table.subject == results.subject]


def _yardstick_us(case: Any) -> float:
    problem = problem_of(case)
    by_flop, by_bytes = problem.flop / YARDSTICK_FLOP_PER_S, problem.min_bytes / YARDSTICK_BYTES_PER_S
    return max(1e6 * by_flop, 1e6 * by_bytes, YARDSTICK_KERNEL_US)


def is_memory_bound(problem: ConvProblem) -> bool:
    """Whether the yardstick by bytes is above that by FLOP."""
    return problem.min_bytes / YARDSTICK_BYTES_PER_S > problem.flop / YARDSTICK_FLOP_PER_S


def problem_of(case: Any) -> ConvProblem:
    """The convolution of a row, given as a named tuple or a series with the columns CASE."""
    stride, dilation = int(case.stride), int(case.dilation)
    return ConvProblem(
        case.batch, case.c, case.h, case.w, case.m, case.k, case.kw, case.pad, case.pad_w,
        stride_h=stride, stride_w=stride, dilation_h=dilation, dilation_w=dilation, groups=int(case.groups),
    )  # fmt: skip


def layer_label(case: Any) -> str:
    """The paper's HW-M-C of a row: input size, filters, input channels.

    The size is HxW where the input is not square. Stride, dilation and groups above 1 follow as -s2, -d2 and -g32,
    and the padding where it is not the usual one, half of the dilated filter.
    """
    twice = [(k - 1) * case.dilation for k in (case.k, case.kw)]
    padding = "" if [2 * case.pad, 2 * case.pad_w] == twice else f" p{extent(case.pad, case.pad_w)}"
    steps = "".join(f"-{name[0]}{value}" for name in GEOMETRY if (value := getattr(case, name)) > 1)
    return f"{extent(case.h, case.w)}-{case.m}-{case.c}{steps}{padding}"


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive values. NaN is left out; the mean of nothing is NaN."""
    array = np.asarray(list(values), dtype=float)
    array = array[~np.isnan(array)]
    return float(np.exp(np.log(array).mean())) if array.size else math.nan


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a set of compared cases.

    wins: cases of speedup above 1. of: cases with a rival's time. The means and the maximum are over the cases that
    the subject ran, and NaN where there is none. at: the label of the case of the largest speedup, or "".
    """

    wins: int
    of: int
    geometric: float
    arithmetic: float
    maximum: float
    at: str


def summarise(rows: pd.DataFrame) -> Summary:
    """The summary of some rows of `compare`. Of equal maxima the first row names the case.

    The case is named HW-M-C where all rows are of one batch and filter size, and HW-N-K-M-C elsewhere.
    """
    compared = rows[rows.rival_us.notna()]
    ran = compared[compared.speedup.notna()]
    if ran.empty:
        return Summary(0, len(compared), math.nan, math.nan, math.nan, "")
    best = ran.iloc[int(np.argmax(ran.speedup.to_numpy(float)))]
    one_group = len(rows.drop_duplicates(["batch", *FILTER])) == 1
    return Summary(
        wins=int((ran.speedup > 1).sum()),
        of=len(compared),
        geometric=geometric_mean(ran.speedup),
        arithmetic=float(ran.speedup.mean()),
        maximum=float(best.speedup),
        at=layer_label(best) if one_group else problem_of(best).label,
    )
