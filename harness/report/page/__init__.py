"""The contents of a sweep's page, as columns and lists for its JavaScript: cases, rivals, runs and the roofline.

The page is one HTML file that needs no network. `python -m harness report page` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from harness.contenders.registry import PROVIDERS, shown
from harness.experiments.copies import rows as bandwidth
from harness.experiments.networks.rows import CUCONV, TORCH_CONTENDERS, label
from harness.precision import FP16, FP32, PRECISIONS, TF32
from harness.store.times import COLD, HOT, SEPARATED, hot_runs, mean_column
from harness.sweep.comparisons import (
    CASE,
    YARDSTICK_BYTES_PER_S,
    YARDSTICK_FLOP_PER_S,
    Results,
    each,
    fastest,
    geometric_mean,
    problem_of,
    rivals,
    timed,
)

ENGINES = "cudnn_engine"
MOST_ENGINES = 3  # the fastest of a case, in each precision; there are up to fifty
DIGITS = 4  # significant digits on the page
CUCONV_IN_FP32 = f"{CUCONV} in FP32"  # a bar beside torch in FP16
BEST_ENGINE = "best cuDNN engine"
FIRST = f"{HOT} {FP32}"  # the choice before anything is chosen; every choice is a time and a precision
Times = dict[str, dict[str, list[Any]]]  # by choice, three lists as `rival_times` has them


def case_columns(results: Results) -> dict[str, list[Any]]:
    """A list for each column of the cases that the first subject ran in FP32, in the order of `Results.of_subject`.

    Times are hot, in microseconds. intensity is in FLOP for each byte of the least traffic, gflop in 10**9 FLOP,
    tflops in 10**12 FLOP/s.
    """
    cases = _ran(results)
    problems = [problem_of(case) for case in each(cases)]
    flop, moved = (np.array([getattr(p, name) for p in problems], dtype=float) for name in ("flop", "min_bytes"))
    return {
        "case": [problem.label for problem in problems],
        "networks": cases.networks.to_list(),
        "layers": cases.layers.to_list(),
        "batch": cases.batch.to_list(),
        "filter": [f"{case.k}x{case.kw}" for case in each(cases)],
        "ours_us": _rounded(cases.mean_us),
        "intensity": _rounded(flop / moved),
        "gflop": _rounded(1e-9 * flop),
        "tflops": _rounded(flop / cases.mean_us.to_numpy(float) * 1e-6),
    }


def _ran(results: Results) -> pd.DataFrame:
    cases = results.of_subject()
    return cases[cases.mean_us.notna()]


def subject_times(results: Results) -> dict[str, list[float | None]]:
    """The first subject's mean microseconds on each of `case_columns`, by choice; None where it has no time.

    A choice without any time is left out, and so are times that the sweep has on a part of its cases only.
    """
    found = {}
    for one in results.every_time:
        for precision in PRECISIONS:
            rows = timed(one.frame, precision)
            mine = rows[(rows.provider == one.comparison.provider) & (rows.algorithm == one.subject)]
            found[f"{one.time} {precision}"] = _rounded(_on_cases(results, mine).mean_us)
    return {key: column for key, column in found.items() if any(column)}


def rival_times(results: Results) -> dict[str, Times]:
    """For each rival to choose, and each choice, its times on each of `case_columns`.

    The first rival is the best of cuDNN. The fastest of a case's engines is one rival. As in `compare_with_tf32`, a
    choice of TF32 takes the faster of a rival's two precisions, on the cases where it has a time in TF32.

    Each choice has three lists. us: mean microseconds, None where there is no time. which: the position in `names` of
    the algorithm that took them, -1 where there is none. names: algorithms, with "(TF32)" where they rounded.
    """
    found: dict[str, Times] = {}
    for one in results.every_time:
        for name, rows in _rivals(one).items():
            for precision in PRECISIONS:
                times = _on_cases(results, _fastest_allowed(rows, precision))
                if times.mean_us.notna().any():
                    which, names = pd.factorize(times.shown)
                    columns: dict[str, list[Any]] = {"us": _rounded(times.mean_us), "which": which.tolist()}
                    found.setdefault(name, {})[f"{one.time} {precision}"] = columns | {"names": names.to_list()}
    return found


def _rivals(results: Results) -> dict[str, pd.DataFrame]:
    """The timed rows of each rival by its name, the best of cuDNN first."""
    rows = timed(results.frame, *PRECISIONS)
    found = {results.comparison.rivals_label: rivals(rows, results.comparison)}
    for provider in PROVIDERS.values():
        mine = rows[rows.provider == provider.name]
        if provider.name == ENGINES:
            found[BEST_ENGINE] = mine
        else:
            found |= {shown(provider.name, name): mine[mine.algorithm == name] for name in provider.algorithms}
    found.pop(results.shown(results.subject), None)
    return found


def _fastest_allowed(rows: pd.DataFrame, precision: str) -> pd.DataFrame:
    """The fastest row of each case in FP32; for TF32 the fastest in either, on the cases that have a row in TF32."""
    of_precision = rows[rows.precision == precision]
    best = fastest(of_precision if precision == FP32 else rows.merge(of_precision[CASE].drop_duplicates(), on=CASE))
    names = [shown(row.provider, row.algorithm) + (" (TF32)" if row.precision == TF32 else "") for row in each(best)]
    return best.assign(shown=pd.Series(names, dtype=object))


def _on_cases(results: Results, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order of `case_columns`, empty for the cases that have none."""
    return _ran(results)[CASE].merge(rows, on=CASE, how="left")


def details(results: Results) -> list[list[list[Any]]]:
    """For each of `case_columns` its algorithms, the fastest first, those without a time last.

    Each is [name, precision, status, relative L2 error, workspace in bytes, runs in microseconds], and where it has
    them the means of its separated and its cold runs. Of cuDNN's engines there are the fastest: see `engine_notes`.
    """
    frame = results.frame[results.frame.precision.isin(PRECISIONS)]
    kept = _engines(frame).sort_values("mean_us").groupby([*CASE, "precision"]).head(MOST_ENGINES).index
    rows = frame[(frame.provider != ENGINES) | frame.index.isin(kept)].sort_values("mean_us", na_position="last")
    rows = rows.assign(runs=pd.Series(list(hot_runs(rows).to_numpy()), index=rows.index))
    by_case = {key: members for key, members in rows.groupby(CASE, sort=False)}
    keys = _ran(results)[CASE].itertuples(index=False, name=None)
    return [[_detail(row) for row in each(by_case[key])] for key in keys]


def engine_notes(results: Results) -> list[str]:
    """For each of `case_columns` a sentence on the engines of cuDNN that `details` shows, "" where none has a time."""
    counts = _engines(results.frame).groupby([*CASE, "precision"]).size().to_dict()
    notes = []
    for key in _ran(results)[CASE].itertuples(index=False, name=None):
        found = [(counts.get((*key, precision), 0), precision.upper()) for precision in PRECISIONS]
        parts = [f"the {min(MOST_ENGINES, of)} fastest of {of} in {precision}" for of, precision in found if of]
        notes.append(f"cuDNN engines: {', '.join(parts)}." if parts else "")
    return notes


def _engines(frame: pd.DataFrame) -> pd.DataFrame:
    rows = timed(frame, *PRECISIONS)
    return rows[rows.provider == ENGINES]


def _detail(row: Any) -> list[Any]:
    runs = [run for run in row.runs if not np.isnan(run)]
    error = None if np.isnan(row.rel_l2_error) else float(f"{row.rel_l2_error:.2e}")
    workspace = None if np.isnan(row.workspace_bytes) else int(row.workspace_bytes)
    others = [getattr(row, mean_column(time)) for time in (SEPARATED, COLD)]
    beside = [] if np.isnan(others).all() else _rounded(others)
    return [shown(row.provider, row.algorithm), row.precision, row.status, error, workspace, _rounded(runs), *beside]


def network_bars(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of networks.csv of one mode in the order of their bars, with columns shown (the network), bar and speed.

    bar is its name. speed is the fastest of torch's times in the same case over the row's own. A case without torch has
    no bar. Where cuConv has no time in FP16, its time in FP32 has a bar among those of FP16.
    """
    ours = rows[rows.contender == CUCONV]
    rows = rows.assign(bar=rows.contender)
    if not (ours.precision == FP16).any():
        in_fp32 = ours[ours.precision == FP32].assign(precision=FP16, bar=CUCONV_IN_FP32)
        rows = pd.concat([rows, in_fp32], ignore_index=True)
    place = rows.contender.map((CUCONV, *TORCH_CONTENDERS).index)
    rows = rows.assign(shown=[label(row.network, row.source) for row in each(rows)], place=place)
    key = ["shown", "batch", "precision"]
    torch_us = rows[rows.contender.isin(TORCH_CONTENDERS)].groupby(key).mean_us.min().rename("torch_us")
    rows = rows.join(torch_us, on=key, how="inner").sort_values([*key, "place"])
    return rows.assign(speed=rows.torch_us / rows.mean_us)


def ceilings(results: Results) -> tuple[float, str, float]:
    """Bytes/s of the roofline, where they come from, and its FLOP/s, a fixed yardstick."""
    copies = bandwidth.find(results.folder.parent)
    if copies is None:
        return YARDSTICK_BYTES_PER_S, "a fixed yardstick", YARDSTICK_FLOP_PER_S
    largest = copies.iloc[-1]
    return 1e6 * float(largest.bytes) / float(largest.mean_us), "a copy on this device", YARDSTICK_FLOP_PER_S


def headline(columns: dict[str, list[Any]], best: list[float | None]) -> str:
    """The sentence above the table before anything is chosen."""
    pairs = [(ours, theirs) for ours, theirs in zip(columns["ours_us"], best, strict=True) if theirs is not None]
    speedups = [theirs / ours for ours, theirs in pairs]
    won = sum(speedup > 1 for speedup in speedups)
    return f"{len(speedups)} cases: geometric mean {geometric_mean(speedups):.2f}x, {won} won"


def _rounded(values: Iterable[float] | pd.Series) -> list[float | None]:
    """Numbers of DIGITS significant digits, None for NaN, which JSON does not have."""
    return [None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in map(float, values)]
