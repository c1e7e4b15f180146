"""The fastest cuDNN of each case compared with that of an older version: what a new version changes.

`python -m harness report keep` writes the fastest cuDNN of each case to results/DEVICE/SWEEP/cudnn-VERSION.csv, before
a sweep with another version replaces its rows. The files have the columns of measurements.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from harness import command
from harness.errors import ResultsError
from harness.report.options import add_source
from harness.store.files import write_whole
from harness.store.markdown import markdown, times
from harness.sweep.comparisons import (
    CASE,
    Results,
    each,
    fastest,
    find_results,
    full_precision,
    grouped,
    problem_of,
    rivals,
)
from harness.sweep.provenance import cudnn_versions
from harness.sweep.records import KEY_COLUMNS, read
from harness.sweep.verdicts import VERDICTS, counted, verdicts

PREFIX = "cudnn-"  # the files' names begin so
MOST = 3  # cases that gain most, and that lose most


@dataclass(frozen=True)
class Change:
    """The fastest cuDNN of each case in an older version and in the one that was measured last.

    cases: rows of `verdicts`, whose ratio is the new time over the old.
    """

    old: str
    new: str
    cases: pd.DataFrame


def changes(results: Results) -> Iterator[Change]:
    """A change for each older version that was kept, in order of the files' names."""
    now = _fastest_cudnn(results)
    for path in sorted({*results.folder.glob(f"{PREFIX}*.csv"), *results.folder.glob(f"{PREFIX}*.csv.gz")}):
        old, _, _ = path.name.removeprefix(PREFIX).partition(".csv")
        others = [rows for _, rows in grouped(now, "environment") if cudnn_versions(results, rows) != [old]]
        newer = pd.concat([now.head(0), *others])  # a case may not have been measured since
        yield Change(old, ", ".join(cudnn_versions(results, newer)), verdicts(read(path), newer, keys=CASE))


def versions_table(results: Results) -> str:
    """For each older version the counts of the verdicts by filter size, and the cases that change most."""
    parts = [_of_change(change) for change in changes(results)]
    return "\n\n".join(parts) or f"No older version of cuDNN was kept for {results.device}."


def _of_change(change: Change) -> str:
    groups = [*((f"{k}x{k}", rows) for k, rows in grouped(change.cases, "k")), ("all", change.cases)]
    body = [[name, *counted(rows)] for name, rows in groups]
    most = pd.concat([change.cases.nsmallest(MOST, "ratio"), change.cases.nlargest(MOST, "ratio")[::-1]])
    moved = [
        [problem_of(case).label, case.which_old, f"{case.old_us:.1f}", case.which_new, f"{case.new_us:.1f}",
         times(case.ratio)]
        for case in each(most)
    ]  # fmt: skip
    return "\n\n".join([
        f"The fastest cuDNN of each case in FP32, version {change.new} beside {change.old}: cases by verdict, and the "
        "geometric mean of the new time over the old.",
        markdown(["filter", *VERDICTS, "new / old"], body),
        f"The cases that change most. The algorithms are the fastest of {change.old} and of {change.new}:",
        markdown(["HW-N-K-M-C", change.old, "us", change.new, "us", "new / old"], moved, left=(0, 1, 3)),
    ])  # fmt: skip


def _fastest_cudnn(results: Results) -> pd.DataFrame:
    return fastest(rivals(full_precision(results.frame), results.comparison))


def keep(results: Results) -> str:
    """Write the row of the fastest cuDNN in FP32 of each case to a file of its own; returns the file's name.

    Raises ResultsError where these rows are not of one known version.
    """
    best = _fastest_cudnn(results)
    versions = cudnn_versions(results, best)
    if len(versions) != 1:
        found = ", ".join(versions) or "no known version"
        raise ResultsError(f"{results.csv_path}: the fastest rows of cuDNN are of {found}: must be of one version")
    rows = pd.read_csv(results.csv_path, dtype=str, keep_default_na=False)
    keys = list(KEY_COLUMNS)
    kept = rows.drop_duplicates(keys, keep="last").merge(best[keys].astype(str), on=keys)
    path = results.folder / f"{PREFIX}{versions[0]}.csv"
    write_whole(path, kept.to_csv(index=False, lineterminator="\n"))
    return path.name


def _keep_all(options: argparse.Namespace) -> None:
    for results in find_results(options.results, options.device, options.sweep):
        print(f"{results.folder}: {keep(results)}")


main = command.program(
    "harness report keep",
    "Keep the fastest cuDNN of each case, before a sweep with another version of cuDNN replaces it.",
    _keep_all,
    lambda parser: add_source(parser, "paper"),
)
