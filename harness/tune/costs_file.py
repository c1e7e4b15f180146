"""Costs from measured candidates: fit all algorithms, print their regret, write the constants to their file."""

from __future__ import annotations

import gzip
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.core import costs
from cuconv.device import DeviceSpec
from harness import progress
from harness.errors import ResultsError
from harness.precision import FP32
from harness.store.files import read_json, write_whole
from harness.store.markdown import markdown
from harness.sweep.comparisons import AUTO
from harness.tune import candidates, fit, refine
from harness.tune.fit import Row

CSV = "candidates.csv.gz"
TRAINING, ALL = "training", "all"
START = "spawn"  # the start method of the processes that fit: this one may hold a CUDA context, so it does not fork

Constants = dict[str, Any]  # by algorithm


def write_fitted(folder: Path, seed: int, precision: str) -> None:
    """Fit the cost models of a precision to a folder's candidates.csv.gz, print their regret, and write their file.

    The models are fitted twice: to all layers, for the file, and without the layers that the seed holds out, to tell
    how well they generalise. Raises ResultsError where the folder lacks what a fit needs.
    """
    facts, device = _measured_on(folder)
    frame = candidates.read(folder / CSV)
    rows, known = fit.rows_of(frame, device, precision)
    if not rows:
        raise ResultsError(f"{folder / CSV} has no {precision} configuration of this version: measure again on a GPU")
    _check_enough(folder / CSV, rows, precision)
    if len(known) < len(frame):
        print(
            f"{len(frame) - len(known)} rows of {folder / CSV} have a configuration that no algorithm offers: deleted"
        )
        write_whole(folder / CSV, gzip.compress(known.to_csv(index=False).encode(), mtime=0))
    training, held_out = fit.hold_out(rows, seed)
    used = {name: ALGORITHMS[name].costs(precision) for name in offering(precision)}
    fitted = _fit_in_parallel({TRAINING: training, ALL: rows}, device, used)
    columns = {
        "all layers, in use": (rows, used),
        "all layers, fitted": (rows, fitted[ALL]),
        "hold-out, in use": (held_out, used),
        "hold-out, fitted without it": (held_out, fitted[TRAINING]),
        "the rest, fitted without the hold-out": (training, fitted[TRAINING]),
    }
    print(_regret_table(columns, device))
    print(f"auto's worst, fitted to all layers: {fit.regret(rows, device, fitted[ALL]).at}")
    write_whole(costs.PATHS[precision], costs.text(fitted[ALL], _heading(facts, precision), _origins(rows)))
    print(f"written: {costs.PATHS[precision]}")


def _check_enough(path: Path, rows: Sequence[Row], precision: str) -> None:
    """Raise ResultsError where an algorithm has fewer rows than its model has constants."""
    for name, count in Counter(row.algorithm for row in rows).items():
        constants = len(fields(ALGORITHMS[name].costs_type))
        if count < constants:
            raise ResultsError(
                f"{path} has {count} rows of {name}, whose cost model has {constants} constants: measure more cases, "
                f"without --minutes; {costs.PATHS[precision].name} stays as it was"
            )


def _measured_on(folder: Path) -> tuple[dict[str, Any], DeviceSpec]:
    """The last report of environment.json, and the one device that all of its reports are of."""
    path = folder / "environment.json"
    try:
        reports = list(read_json(path, "measure again")["environments"].values())
        devices = {(one["gpu"], one["compute_capability"], one["multiprocessors"]) for one in reports}
        ((gpu, capability, multiprocessors),) = devices
        major, minor = map(int, capability.split("."))
        return reports[-1], DeviceSpec(gpu, (major, minor), multiprocessors)
    except (ResultsError, ValueError, KeyError, AttributeError, TypeError):
        raise ResultsError(f"{path} does not say on which GPU the candidates were measured: measure again") from None


def _fit_in_parallel(sets: dict[str, list[Row]], device: DeviceSpec, used: Constants) -> dict[str, Constants]:
    """For each set of rows the constants of all algorithms: fitted and refined, or those in use where it has none."""
    fitted = {name: dict(used) for name in sets}
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context(START)) as pool:
        fits = {}
        for name, rows in sets.items():
            for algorithm in used:
                if mine := [row for row in rows if row.algorithm == algorithm]:
                    fits[pool.submit(fit.fit, mine, device)] = (name, algorithm)
        for job in progress.counted(as_completed(fits), "fits", total=len(fits)):
            name, algorithm = fits[job]
            fitted[name][algorithm] = job.result()
        # The bar of the largest set is shown: the others end before it.
        jobs = {
            name: pool.submit(refine.refine, rows, device, fitted[name], shows_progress=name == ALL)
            for name, rows in sets.items()
        }
        return {name: fitted[name] | job.result() for name, job in jobs.items()}


def _regret_table(columns: dict[str, tuple[list[Row], Constants]], device: DeviceSpec) -> str:
    """The regret of each algorithm's own choice, and of auto's; a column has rows and the constants to choose by."""
    body = []
    algorithms = next(iter(columns.values()))[1]
    for name, closed in (*((one, False) for one in (*algorithms, AUTO)), (AUTO, True)):
        cells = []
        for rows, constants in columns.values():
            mine = [row for row in rows if name in (AUTO, row.algorithm)]
            found = fit.regret(mine, device, constants, closed)
            cells.append(f"{found.geometric:.3f}x, {found.worst:.2f}x of {found.cases}" if found.cases else "-")
        body.append([f"{name}, closed set" if closed else name, *cells])
    note = "Regret, the time of the choice over that of the best candidate measured: geometric mean, worst, cases."
    return f"{note}\n\n" + markdown(["algorithm", *columns], body)


def _heading(facts: dict[str, Any], precision: str) -> list[str]:
    """The comment at the top of the file."""
    day = datetime.now(UTC).date().isoformat()
    models, option = ("", "") if precision == FP32 else (f" in {precision.upper()}", f" --precision {precision}")
    return [
        f"Constants of the cost models by which auto chooses{models}. Written by: python -m harness tune{option}",
        f"Fitted on {day} to times measured on {facts['gpu']}, commit {(facts.get('commit') or 'unknown')[:12]}.",
        "Each value is in microseconds, unless its comment names another unit; the comment says what takes this time.",
    ]


def _origins(rows: Sequence[Row]) -> dict[str, str]:
    """How many rows each algorithm is fitted to."""
    problems: dict[str, list[Any]] = {}
    for row in rows:
        problems.setdefault(row.algorithm, []).append(row.problem)
    return {
        name: f"fitted to {len(every)} configurations of {len(set(every))} cases" for name, every in problems.items()
    }
