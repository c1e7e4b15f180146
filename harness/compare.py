"""python -m harness compare OLD NEW: what became faster or slower from one measurement to another.

OLD and NEW are folders with a measurements.csv, CSV files, or REVISION:PATH for one that git has. Rows are compared by
case and algorithm; with --fastest, the fastest algorithms of each case are, such as those of two versions of cuDNN. The
exit code is 1 where anything became slower, or, without --fastest, had a time in OLD and is not "ok" in NEW.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness import command
from harness.contenders.registry import PROVIDERS, names_of, shown
from harness.errors import ResultsError, UsageError
from harness.precision import FP32, MEASURED
from harness.store import environment
from harness.store.environment import ROOT
from harness.store.files import read_regular, stored
from harness.store.markdown import markdown, times
from harness.store.times import HOT, TIMES, at_time
from harness.sweep.comparisons import (
    CASE,
    FILTER,
    Results,
    each,
    fastest,
    grouped,
    layer_label,
    problem_of,
    timed,
)
from harness.sweep.provenance import provenance
from harness.sweep.records import CSV, KEY_COLUMNS, read
from harness.sweep.verdicts import CLOCK, FASTER, SLOWER, THRESHOLD, UNCLEAR, VERDICTS, counted, verdicts

WORSE_FOUND = 1  # the exit code
SHOWN = 10  # cases of a verdict
SIDES = ("old", "new")
PACKED = f"{CSV}.gz"


def _compare(options: argparse.Namespace) -> int:
    """Print the comparison; returns WORSE_FOUND where anything became slower, or broke."""
    _check(options)
    with _folder(options.old) as old, _folder(options.new) as new:
        found_in = ((options.old, old), (options.new, new))
        sides = [Results(named, "", _chosen(read(folder / CSV), options), folder) for named, folder in found_in]
        origins = [f"{name}: {provenance(side)}{_commits(side)}" for name, side in zip(SIDES, sides, strict=True)]
    before, after = (timed(_at_time(side.frame, options.time), options.precision) for side in sides)
    if options.fastest:
        before, after = fastest(before), fastest(after)
    keys = CASE if options.fastest else list(KEY_COLUMNS)
    broken = _broken(before, sides[1].frame) if not options.fastest else before.head(0)
    found = verdicts(before, after, options.threshold, keys)
    if found.empty and broken.empty:
        raise ResultsError(
            f"{options.old} has {len(before)} {options.time} times that fit the options, {options.new} has "
            f"{len(after)}, and none of the same case and algorithm: choose another --provider, --algorithm, "
            "--precision or --time"
        )
    print("\n".join(origins))
    if not found.empty:
        print(f"\n{_summary(found, options.threshold)}")
    print(f"\n{_unmatched(before, after, keys)}")
    if not broken.empty:
        print(f"\n{_told(broken)}")
    for verdict, order in ((SLOWER, False), (FASTER, True), (UNCLEAR, False)):
        if table := _table(found[found.verdict == verdict].sort_values("ratio", ascending=order)):
            print(f"\n{verdict}:\n\n{table}")
    return WORSE_FOUND if (found.verdict == SLOWER).any() or not broken.empty else command.OK


def _at_time(frame: pd.DataFrame, time: str) -> pd.DataFrame:
    """The rows with a time as their hot time, and the clock of those runs, which is known of hot runs alone."""
    return at_time(frame, time) if time == HOT else at_time(frame, time).assign(**{CLOCK: np.nan})


def _check(options: argparse.Namespace) -> None:
    """Raise UsageError for a value that no measurement can have."""
    if not 0 <= options.threshold < 1:
        raise UsageError(f"--threshold {options.threshold:g}: must be at least 0 and less than 1, such as 0.02")
    for name in options.provider:
        if name not in PROVIDERS:
            raise UsageError(f"--provider {name}: must be one of {', '.join(PROVIDERS)}")
    for name in options.algorithm or ():
        if not any(PROVIDERS[provider].may_have(name, options.precision) for provider in options.provider):
            raise UsageError(f"--algorithm {name}: {names_of(options.provider, options.precision)}")


def _commits(side: Results) -> str:
    """The commits of the rows of a measurement, for the reader; empty where none is known."""
    reports, used = environment.read(side.folder), dict.fromkeys(side.frame.environment)
    commits = dict.fromkeys(str(reports[name]["commit"])[:8] for name in used if reports.get(name, {}).get("commit"))
    return f", commit {', '.join(commits)}" if commits else ""


def _broken(before: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """The new rows that are not ok where the old measurement has a time."""
    keys = list(KEY_COLUMNS)
    return new[new.status != "ok"].merge(before[keys], on=keys)


def _told(broken: pd.DataFrame) -> str:
    """A sentence on the rows that are ok no more."""
    counts = ", ".join(f"{count} {status}" for status, count in broken.status.value_counts().items())
    (first,) = each(broken.head(1))
    return (
        f"broken: {len(broken)} rows are ok in OLD and not in NEW ({counts}), the first: "
        f"{shown(first.provider, first.algorithm)} on {problem_of(first).label}: {first.detail}"
    )


@contextmanager
def _folder(named: str) -> Iterator[Path]:
    """A folder with the measurements.csv that is meant, and environment.json where there is one."""
    path = Path(named)
    if os.path.isdir(path) and not stored(path / CSV).exists() and (others := sorted(path.glob("*.csv"))):
        raise UsageError(f"{named} has {others[0].name}, and no {CSV}, which alone can be compared")
    if os.path.isdir(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as made:
        if os.path.exists(path):
            _copy(path, Path(made) / (PACKED if path.suffix == ".gz" else CSV))
            if os.path.isfile(beside := path.with_name("environment.json")):
                _copy(beside, Path(made) / beside.name)
        else:
            _from_git(named, Path(made))
        yield Path(made)


def _copy(path: Path, to: Path) -> None:
    """Copy a regular file. Raises UsageError for anything else."""
    try:
        to.write_bytes(read_regular(path))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): name a folder with a {CSV}, or a CSV file"
        ) from None


def _from_git(named: str, folder: Path) -> None:
    """Fill a folder with the files that REVISION:PATH names. Raises UsageError where git has none."""
    revision, colon, inside = named.partition(":")
    if not colon:
        raise UsageError(f"{named} does not exist: name a folder with a {CSV}, or REVISION:PATH")
    inside = inside if inside.endswith((".csv", ".csv.gz")) else f"{inside.rstrip('/')}/{CSV}"
    both = [inside] if inside.endswith(".gz") else [inside, f"{inside}.gz"]
    shown_by_name = {name: _shown_by_git(revision, name) for name in both}
    found = next((name for name, shows in shown_by_name.items() if shows.returncode == 0), None)
    if found is None:
        reason = (shown_by_name[inside].stderr.decode(errors="replace").strip() or "no message").splitlines()[0]
        raise UsageError(f"{named}: git has no such file ({reason}): name a revision, and a path from the top folder")
    (folder / (PACKED if found.endswith(".gz") else CSV)).write_bytes(shown_by_name[found].stdout)
    environments = _shown_by_git(revision, str(Path(inside).with_name("environment.json")))
    if environments.returncode == 0:
        (folder / "environment.json").write_bytes(environments.stdout)


def _shown_by_git(revision: str, path: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "show", "--end-of-options", f"{revision}:{path}"], cwd=ROOT, capture_output=True)


def _chosen(rows: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """The rows of a file that the options choose."""
    rows = rows[rows.provider.isin(options.provider) & (rows.precision == options.precision)]
    return rows[rows.algorithm.isin(options.algorithm)] if options.algorithm else rows


def _summary(found: pd.DataFrame, threshold: float) -> str:
    """The number of cases of each verdict, and the geometric mean of new over old, in groups."""
    same = (found.which_old == found.which_new).all()  # not where the fastest of each are compared
    groups = list(grouped(found, "which_new")) if same else []
    groups += [(f"{k}x{kw}", rows) for (k, kw), rows in grouped(found, FILTER)]
    groups += [(f"batch {batch}", rows) for batch, rows in grouped(found.sort_values("batch"), "batch")]
    body = [[name, *counted(rows)] for name, rows in [*groups, ("all", found)]]
    note = (
        "New over old, medians of the runs, which one disturbed run does not move. "
        f"A difference counts from {threshold:.1%} on, and beyond what the clocks of the hot runs explain."
    )
    return f"{note}\n\n" + markdown(["", *VERDICTS, "new / old"], body)


def _table(rows: pd.DataFrame) -> str:
    """The first cases of one verdict; empty where there are none."""
    if rows.empty:
        return ""
    body = [
        [row.batch, f"{row.k}x{row.kw}", layer_label(row), _which(row),
         f"{row.old_us:.2f}", f"{row.new_us:.2f}", times(row.ratio, 3)]
        for row in each(rows.head(SHOWN))
    ]  # fmt: skip
    more = f"\n\nand {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return markdown(["batch", "filter", "HW-M-C", "algorithm", "old, us", "new, us", "new / old"], body, (2, 3)) + more


def _which(row: Any) -> str:
    """The algorithm of a row of `verdicts`, or both where they differ."""
    return row.which_old if row.which_old == row.which_new else f"{row.which_old}, then {row.which_new}"


def _unmatched(old: pd.DataFrame, new: pd.DataFrame, keys: Sequence[str]) -> str:
    """How many rows only one of the two has."""
    before, after = (set(rows[list(keys)].itertuples(index=False, name=None)) for rows in (old, new))
    return f"{len(before & after)} rows compared, {len(before - after)} only old, {len(after - before)} only new"


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    where = "a folder with a measurements.csv, a CSV file, or REVISION:PATH for one that git has"
    add("old", metavar="OLD", help=where)
    add("new", metavar="NEW", help=f"likewise: {where}")
    add("--provider", nargs="+", metavar="NAME", default=["cuconv"], help="whose algorithms (default: cuconv)")
    add("--algorithm", nargs="+", metavar="NAME", help="only these algorithms (default: all)")
    add("--fastest", action="store_true", help="the fastest of these algorithms on each case, whatever their names")
    add("--precision", choices=MEASURED, default=FP32, help="(default: fp32)")
    add("--time", choices=TIMES, default=HOT, help="which times (default: hot)")
    add("--threshold", type=float, default=THRESHOLD, metavar="SHARE",
        help=f"the least difference that counts (default: {THRESHOLD})")  # fmt: skip


main = command.program(
    "harness compare", "What became faster or slower from one measurement to another.", _compare, _add_options
)
