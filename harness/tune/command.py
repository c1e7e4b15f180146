"""python -m harness tune: measure configurations on a GPU, fit the cost models to them, write their constants."""

from __future__ import annotations

import argparse
from pathlib import Path

from cuconv.core.problem import TF32_LAST
from cuconv.device import device_spec
from harness import command
from harness.cases.catalogue import load_sweep
from harness.errors import UsageError
from harness.precision import FP16, FP32, TF32
from harness.store import environment
from harness.tune import candidates, costs_file
from harness.tune.costs_file import CSV

# Under results/DEVICE, for the candidates of each precision; BF16 has the constants of FP16.
FOLDERS = {FP32: "tune", TF32: "tune-tf32", TF32_LAST: "tune-tf32-channels-last", FP16: "tune-fp16"}
MINUTES = 4.0


def _run(options: argparse.Namespace) -> None:
    if options.add and options.fit_only:
        raise UsageError("--add --fit-only: the first adds measurements, the second makes none, leave one of them out")
    folder = _measured_folder(options) if options.fit_only else _measure(options)
    costs_file.write_fitted(folder, options.seed, options.precision)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", default="tuning", help="a sweep of configs/ by name, or a YAML file of your own (default: tuning)")
    add(
        "--precision",
        choices=tuple(FOLDERS),
        default=FP32,
        help="of the cost models to measure and fit (default: fp32)",
    )
    add("--minutes", type=float, default=MINUTES, help=f"time for measuring (default: {MINUTES:g})")
    add("--seed", type=int, default=0, help="of the data, the order of the cases and the hold-out (default: 0)")
    add("--out", type=command.folder, help="results folder (default: results/DEVICE/tune or tune-PRECISION)")
    add("--add", action="store_true", help="keep the folder's rows of other cases, of the same kind of GPU")
    add("--fit-only", action="store_true", help="fit to the rows that the folder has; needs no GPU")


def _measure(options: argparse.Namespace) -> Path:
    """Write candidates.csv.gz and environment.json, and return their folder."""
    device = environment.current_gpu("candidates", ": fit to the committed times with --fit-only")
    if not options.minutes > 0:
        raise UsageError(f"--minutes {options.minutes:g}: must be above 0")
    sweep = load_sweep(options.config)
    folder = options.out or Path("results") / environment.device_slug(device) / FOLDERS[options.precision]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder} ({error.strerror}): choose another folder with --out") from None
    before = candidates.read(folder / CSV) if options.add and (folder / CSV).exists() else None
    environment.report_gpu(folder, options.typed, alone=before is None)
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
        raise UsageError(f"--fit-only without --out needs {what}, there is {names}: choose one with --out")
    return found[0].parent


main = command.program(
    "harness tune",
    "Measure configurations on a GPU, fit the cost models to them, write cuconv/core/costs*.toml.",
    _run,
    _add_options,
    "fit to them with --fit-only",
)
