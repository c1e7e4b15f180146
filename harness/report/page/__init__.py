"""What the page of a sweep shows, as columns and lists for its JavaScript: cases, rivals, runs and the roofline.

The page is one HTML file that needs no network. `python -m harness.report page` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from harness.contenders.registry import PROVIDERS, shown
from harness.experiments.copies import rows as bandwidth
from harness.precision import FP32, TF32
from harness.store.times import COLD, SEPARATED, hot_runs, mean_column
from harness.sweep.comparisons import (
    CASE,
    FLOOR_BYTES_PER_S,
    FLOOR_FLOP_PER_S,
    Results,
    each,
    fastest,
    full_precision,
    geometric_mean,
    problem_of,
    rivals,
    timed,
)

ENGINES = "cudnn_engine"
MOST_ENGINES = 3  # the fastest of a case, in each precision; there are up to fifty
DIGITS = 4  # of a number on the page
BEST_ENGINE = "best cuDNN engine"


def case_columns(results: Results) -> dict[str, list[Any]]:
    """A list for each column of the cases that the first subject ran in FP32, in the order of `Results.of_subject`.

    Times are in microseconds. intensity is in FLOP for each byte of the least traffic, tflops in 10**12 FLOP/s.
    """
    cases = _ran(results)
    problems = [problem_of(case) for case in each(cases)]
    flop, moved = (np.array([getattr(p, name) for p in problems], dtype=float) for name in ("flop", "min_bytes"))
    return {
        "case": [problem.label for problem in problems],
        "networks": cases.networks.to_list(),
        "layers": cases.layers.to_list(),
        "batch": cases.batch.to_list(),
        "filter": [f"{k}x{k}" for k in cases.k],
        "ours_us": _rounded(cases.mean_us),
        "intensity": _rounded(flop / moved),
        "tflops": _rounded(flop / cases.mean_us.to_numpy(float) * 1e-6),
    }


def _ran(results: Results) -> pd.DataFrame:
    cases = results.of_subject()
    return cases[cases.mean_us.notna()]


def rival_times(results: Results) -> dict[str, list[float | None]]:
    """For each rival to choose the mean microseconds on each of `case_columns`, None where it has no time.

    The first is the best of cuDNN. The fastest of a case's engines is one rival.
    """
    rows = full_precision(results.frame)
    found = {results.comparison.rivals_label: fastest(rivals(rows, results.comparison))}
    for provider in PROVIDERS.values():
        mine = rows[rows.provider == provider.name]
        if provider.name == ENGINES:
            found[BEST_ENGINE] = fastest(mine)
        else:
            found |= {shown(provider.name, name): mine[mine.algorithm == name] for name in provider.algorithms}
    found.pop(results.shown(results.subject), None)
    keys = _ran(results)[CASE]
    times = {name: keys.merge(mine[[*CASE, "mean_us"]], on=CASE, how="left").mean_us for name, mine in found.items()}
    return {name: _rounded(column) for name, column in times.items() if column.notna().any()}


def details(results: Results) -> list[list[list[Any]]]:
    """For each of `case_columns` its algorithms, the fastest first, those without a time last.

    Each is [name, precision, status, relative L2 error, workspace in bytes, runs in microseconds], and where it has
    them the means of its separated and its cold runs. Of cuDNN's engines there are the fastest.
    """
    frame = results.frame
    engines = timed(frame, FP32, TF32)
    engines = engines[engines.provider == ENGINES].sort_values("mean_us")
    kept = engines.groupby([*CASE, "precision"]).head(MOST_ENGINES).index
    rows = frame[(frame.provider != ENGINES) | frame.index.isin(kept)].sort_values("mean_us", na_position="last")
    rows = rows.assign(runs=pd.Series(list(hot_runs(rows).to_numpy()), index=rows.index))
    by_case = {key: members for key, members in rows.groupby(CASE, sort=False)}
    keys = _ran(results)[CASE].itertuples(index=False, name=None)
    return [[_detail(row) for row in each(by_case[key])] for key in keys]


def _detail(row: Any) -> list[Any]:
    runs = [run for run in row.runs if not np.isnan(run)]
    error = None if np.isnan(row.rel_l2_error) else float(f"{row.rel_l2_error:.2e}")
    workspace = None if np.isnan(row.workspace_bytes) else int(row.workspace_bytes)
    others = [getattr(row, mean_column(time)) for time in (SEPARATED, COLD)]
    beside = [] if np.isnan(others).all() else _rounded(others)
    return [shown(row.provider, row.algorithm), row.precision, row.status, error, workspace, _rounded(runs), *beside]


def ceilings(results: Results) -> tuple[float, str, float]:
    """Bytes/s of the roofline, where they come from, and its FLOP/s, a fixed yardstick."""
    copies = bandwidth.find(results.folder.parent)
    if copies is None:
        return FLOOR_BYTES_PER_S, "a fixed yardstick", FLOOR_FLOP_PER_S
    largest = copies.iloc[-1]
    return 1e6 * float(largest.bytes) / float(largest.mean_us), "a copy on this device", FLOOR_FLOP_PER_S


def headline(columns: dict[str, list[Any]], best: list[float | None]) -> str:
    """The sentence above the table before anything is chosen."""
    pairs = [(ours, theirs) for ours, theirs in zip(columns["ours_us"], best, strict=True) if theirs is not None]
    speedups = [theirs / ours for ours, theirs in pairs]
    won = sum(speedup > 1 for speedup in speedups)
    return f"{len(speedups)} cases: geometric mean {geometric_mean(speedups):.2f}x, {won} won"


def _rounded(values: Iterable[float] | pd.Series) -> list[float | None]:
    """Numbers of DIGITS significant digits, None for NaN, which JSON does not have."""
    return [None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in map(float, values)]
