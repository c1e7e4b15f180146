"""python -m harness.tune: measure configurations on a GPU, fit the cost models to them, write cuconv/costs*.toml."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from cuconv import costs
from cuconv.algorithms import ALGORITHMS, offering
from cuconv.device import DeviceSpec, device_spec
from harness.tune.__main__ import candidates
from harness.results import environment
from harness.results.comparisons import AUTO
from harness.catalogue import CatalogueError, load_sweep
from harness.report.markdown import markdown
from harness.precision import FP32, PRECISIONS, TF32
from harness.results.records import ResultsError
from harness.run import INTERRUPTED, USER_ERROR, UsageError

CSV = "candidates.csv"
FOLDERS = {FP32: "tune", TF32: "tune-tf32"}  # of what was measured, in results/DEVICE
MINUTES = 4.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 for a lost GPU, 2 for a user's mistake, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    command = environment.command_line("harness.tune", arguments)
    try:
        if options.add and options.fit_only:
            raise UsageError(
                "--add --fit-only: the first adds measurements, the second makes none, leave one of them out"
            )
        folder = _measured_folder(options) if options.fit_only else _measure(options, command)
        _fit(folder, options.seed, options.precision)
    except (UsageError, CatalogueError, ResultsError, costs.CostsError) as error:
        print(f"harness.tune: {error}", file=sys.stderr)
        return USER_ERROR
    except candidates.GpuLost as error:
        print(f"harness.tune: {error}; fit to them with --fit-only", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("harness.tune: interrupted; the rows so far are kept, fit to them with --fit-only", file=sys.stderr)
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.tune", description=__doc__.split(": ", 1)[1])
    add = parser.add_argument
    add("--config", default="tuning", help="a sweep of configs/ by name, or a YAML file of your own (default: tuning)")
    add("--precision", choices=PRECISIONS, default=FP32, help="of the cost models to measure and fit (default: fp32)")
    add("--minutes", type=float, default=MINUTES, help=f"time for measuring (default: {MINUTES:g})")
    add("--seed", type=int, default=0, help="of the data, the order of the cases and the layers held out (default: 0)")
    add("--out", type=Path, help="results folder (default: results/DEVICE/tune, or tune-tf32)")
    add("--add", action="store_true", help="keep what was measured before of other cases, on the same kind of GPU")
    add("--fit-only", action="store_true", help="fit to what was measured before; needs no GPU")
    return parser


def _measure(options: argparse.Namespace, command: str) -> Path:
    """Write candidates.csv and environment.json; returns their folder."""
    if not torch.cuda.is_available():
        raise UsageError("no GPU found: measure on one, or fit to the committed times with --fit-only")
    if not options.minutes > 0:
        raise UsageError(f"--minutes {options.minutes:g}: must be above 0")
    device = torch.device("cuda", torch.cuda.current_device())
    sweep = load_sweep(options.config)
    folder = options.out or Path("results") / environment.device_slug(device) / FOLDERS[options.precision]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder} ({error.strerror}): choose another folder with --out") from None
    before = candidates.read(folder / CSV) if options.add and (folder / CSV).exists() else None
    environment.report_gpu(folder, command, alone=before is None)
    spec = device_spec(device.index)
    limits = (options.minutes, options.seed, options.precision)
    try:
        dropped = candidates.measure(sweep.cases, device, spec, folder / CSV, *limits)
    finally:
        if before is not None:
            candidates.add_other_cases(folder / CSV, before)
    print(f"{folder / CSV}: {len(candidates.read(folder / CSV))} candidates; left out as wrong or failed: {dropped}")
    return folder


def _measured_folder(options: argparse.Namespace) -> Path:
    """The folder to fit to: the one asked for, or the only one of the precision under results/."""
    if options.out is not None:
        return options.out
    found = sorted(Path("results").glob(f"*/{FOLDERS[options.precision]}/{CSV}"))
    if len(found) != 1:
        names = ", ".join(str(path.parent) for path in found) or "none"
        what = f"one folder measured in {options.precision} under results/"
        raise UsageError(f"--fit-only without --out needs {what}, there is {names}")
    return found[0].parent


def _fit(folder: Path, seed: int, precision: str) -> None:
    """Fit, say how good it is, and write the costs of the precision."""
    try:
        from harness.tune.__main__ import fit as fitting
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'cuconv[tune]'") from None

    facts, device = _measured_on(folder)
    rows, unknown = fitting.rows_of(candidates.read(folder / CSV), device, precision)
    if unknown:
        print(f"{unknown} rows are of configurations that this version does not have: measure again to fit to all")
    if not rows:
        raise ResultsError(f"{folder / CSV} has no {precision} configuration of this version: measure again on a GPU")
    training, held_out = fitting.split(rows, seed)
    sets = {"training": training, "all": rows}
    used = {name: ALGORITHMS[name].costs(precision) for name in offering(precision)}
    fitted = _fit_in_parallel(sets, device)
    fitted = _refine_in_parallel(sets, device, {name: used | fitted[name] for name in sets})
    columns = {
        "in use": (rows, used),
        "fitted to 3/4": (training, used | fitted["training"]),
        "on the held-out 1/4": (held_out, used | fitted["training"]),
        "held out, in use": (held_out, used),
        "fitted to all": (rows, used | fitted["all"]),
    }
    print(_regret_table(columns, device))
    heading = _heading(facts, len(rows), len({row.problem for row in rows}), precision)
    costs.PATHS[precision].write_text(costs.text(used | fitted["all"], heading))
    print(f"written: {costs.PATHS[precision]}")


def _measured_on(folder: Path) -> tuple[dict[str, Any], DeviceSpec]:
    """The last report of environment.json, and the device that all of them are of."""
    path = folder / "environment.json"
    try:
        reports = list(json.loads(path.read_text())["environments"].values())
        devices = {(one["gpu"], one["compute_capability"], one["multiprocessors"]) for one in reports}
        ((gpu, capability, multiprocessors),) = devices
        return reports[-1], DeviceSpec(gpu, tuple(map(int, capability.split("."))), multiprocessors)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise ResultsError(f"{path} does not say on which GPU the candidates were measured: measure again") from None


def _fit_in_parallel(sets: dict[str, list], device: DeviceSpec) -> dict[str, dict[str, Any]]:
    """For each set of rows the constants of each algorithm in it; a process for each fit."""
    from harness.tune.__main__ import fit as fitting

    fitted: dict[str, dict[str, Any]] = {name: {} for name in sets}
    # Not forked: this process may hold a CUDA context.
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        jobs = {}
        for name, rows in sets.items():
            for algorithm in ALGORITHMS:
                mine = [row for row in rows if row.algorithm == algorithm]
                if mine:
                    jobs[pool.submit(fitting.fit, mine, device)] = (name, algorithm)
        bar_format = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed} elapsed, {remaining} left"
        for job in tqdm(as_completed(jobs), total=len(jobs), desc="fits", bar_format=bar_format):
            name, algorithm = jobs[job]
            fitted[name][algorithm] = job.result()
    return fitted


def _refine_in_parallel(
    sets: dict[str, list], device: DeviceSpec, fitted: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """For each set of rows the constants of all algorithms in it; a process for each set."""
    from harness.tune.__main__ import refine as refining

    with ProcessPoolExecutor(len(sets), multiprocessing.get_context("spawn")) as pool:
        jobs = {
            name: pool.submit(refining.refine, rows, device, fitted[name], name, line)
            for line, (name, rows) in enumerate(sets.items())
        }
        return {name: job.result() for name, job in jobs.items()}


def _regret_table(columns: dict[str, tuple[list, dict[str, Any]]], device: DeviceSpec) -> str:
    """Time of the choice over that of the best candidate measured: geometric mean, and the worst case."""
    from harness.tune.__main__ import fit as fitting

    body, worst = [], ""
    for name in (*columns["in use"][1], AUTO):
        cells = []
        for rows, constants in columns.values():
            mine = [row for row in rows if name in (AUTO, row.algorithm)]
            found = fitting.regret(mine, device, constants)
            cells.append(f"{found.geometric:.3f}x, {found.worst:.2f}x of {found.cases}" if found.cases else "-")
            worst = found.at
        body.append([name, *cells])
    note = f"Time of the choice over the best candidate measured: geometric mean, worst. auto's worst: {worst}."
    return f"{note}\n\n" + markdown(["algorithm", *columns], body)


def _heading(facts: dict[str, Any], rows: int, cases: int, precision: str) -> list[str]:
    day = datetime.now(UTC).date().isoformat()
    models, option = ("", "") if precision == FP32 else (f" in {precision.upper()}", f" --precision {precision}")
    return [
        f"Constants of the cost models by which auto chooses{models}. Written by: python -m harness.tune{option}",
        f"Fitted on {day} to {rows} configurations of {cases} cases, measured on {facts['gpu']}, "
        f"commit {(facts.get('commit') or 'unknown')[:12]}.",
        "Microseconds of what the comment says, where it does not name another unit.",
    ]


if __name__ == "__main__":
    sys.exit(main())
