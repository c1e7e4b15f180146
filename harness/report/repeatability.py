"""python -m harness report repeatability FOLDER FOLDER ...: how far the same case moves between whole sweeps.

Each folder has the measurements.csv of one sweep, of other hours or machines. The movement of a time is
largest / smallest - 1. Cases count where our first subject and a rival have a time in every sweep.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness import command
from harness.contenders.registry import shown
from harness.errors import ResultsError, UsageError
from harness.report.speedups import by_batch, labelled
from harness.store.markdown import Column, of, tabulate
from harness.store.times import HOT, TIMES
from harness.sweep.comparisons import CASE, Results, each
from harness.sweep.provenance import provenance

TIMED = ["mean_us", "rival_us", "speedup"]  # columns of `compare` that move
USUAL = 0.95  # the share of the cases that move by at most the printed 95%
SHOWN = 5  # cases that move most


def movements(sweeps: Sequence[Results]) -> pd.DataFrame:
    """A row for each case: CASE, and how far mean_us, rival_us and speedup move between the sweeps, as shares.

    Beside them are wins, the number of sweeps in which the first subject is the faster one; rivals, the number of
    algorithms that are the fastest rival in some sweep; and ours_us, the subject's time in each sweep.
    """
    found = [results.of_subject().dropna(subset="speedup") for results in sweeps]
    table = pd.concat(found, ignore_index=True)
    table["won"] = table.speedup > 1
    table["rival"] = [shown(case.rival_provider, case.rival_algorithm) for case in each(table)]
    cases = table.groupby(CASE)
    moved = cases[TIMED].max() / cases[TIMED].min() - 1
    moved = moved.assign(wins=cases.won.sum(), rivals=cases.rival.nunique(), ours_us=cases.mean_us.agg(list))
    return moved[cases.size() == len(sweeps)].reset_index()


def report(sweeps: Sequence[Results]) -> str:
    """How far times move, how often the winner changes, and the cases that move most. Raises ResultsError for no case.

    sweeps: at least two, each with a time of its own for the same subject.
    """
    first, moved = sweeps[0], movements(sweeps)
    if moved.empty:
        raise ResultsError(f"no case has a {first.time} time of ours and of a rival in every one of these sweeps")
    sources = "\n".join(f"- {results.folder}: {provenance(results)}" for results in sweeps)
    meaning = (
        f"Movement of {first.time} times: largest / smallest - 1, of {len(sweeps)} sweeps. "
        f"Median of the cases, and what {USUAL:.0%} of them stay within."
    )
    tables = (movement_table(moved, first), winners(moved, len(sweeps), first), _most_moved(moved, first))
    return "\n\n".join([sources, meaning, *tables])


def movement_table(moved: pd.DataFrame, results: Results) -> str:
    """A line for each batch size: the median and the 95% quantile of each of TIMED."""

    def column(header: str, name: str, share: float) -> Column:
        return header, lambda cases: f"{cases[name].quantile(share):.1%}"

    columns: list[Column] = [("cases", len)]
    shown = (results.shown(results.subject), results.comparison.rivals_label, "speedup")
    for header, name in zip(shown, TIMED, strict=True):
        columns += [column(header, name, 0.5), column(f"{USUAL:.0%}", name, USUAL)]
    return tabulate("batch", by_batch(moved), columns)


def winners(moved: pd.DataFrame, sweeps: int, results: Results) -> str:
    """Two sentences: how often the winner changes between sweeps, and how often the fastest rival does."""
    always, never = int((moved.wins == sweeps).sum()), int((moved.wins == 0).sum())
    cases = len(moved)
    return (
        f"{results.shown(results.subject)} is faster than {results.comparison.rivals_label} in every sweep on "
        f"{of(always, cases)} cases, in none on {never}; the winner changes on {cases - always - never}. "
        f"The fastest rival changes on {of(int((moved.rivals > 1).sum()), cases)}."
    )


def _most_moved(moved: pd.DataFrame, results: Results) -> str:
    """The cases whose time of the first subject moves most, with its time in each sweep."""
    columns: list[Column] = [
        ("moves", lambda case: f"{case.mean_us:.1%}"),
        (
            f"{results.shown(results.subject)}, us in each sweep",
            lambda case: " ".join(f"{us:.2f}" for us in case.ours_us),
        ),
    ]
    table = tabulate("HW-N-K-M-C", labelled(moved.nlargest(SHOWN, "mean_us")), columns)
    return f"The cases that move most:\n\n{table}"


def _read(folders: Sequence[Path], time: str) -> list[Results]:
    """The sweeps of different folders. Raises UsageError for fewer than two."""
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        named = " ".join(map(str, folders))
        raise UsageError(f"{named}: name at least two different folders, each with the measurements.csv of one sweep")
    return [Results.read(folder.resolve()).at(time) for folder in folders]


def _print(options: argparse.Namespace) -> None:
    print(report(_read(options.folders, options.time)))


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folders", nargs="+", type=command.folder, metavar="FOLDER", help="a folder with a sweep's measurements.csv")
    add("--time", choices=TIMES, default=HOT, help="which times (default: hot)")


main = command.program(
    "harness report repeatability",
    "How far the same case moves between whole sweeps, and how often the winner changes.",
    _print,
    _add_options,
)
