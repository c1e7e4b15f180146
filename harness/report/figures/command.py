"""python -m harness.report figures: redraw every figure from the CSV files under results/ alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness import command
from harness.report.figures import draw
from harness.report.figures.networks import draw_networks
from harness.store.times import HOT, TIMES
from harness.sweep.comparisons import find_results


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 2 where there are no results."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.report figures", description="Redraw the figures from the results."
    )
    parser.add_argument(
        "--results", type=command.folder, default=Path("results"), help="folder of DEVICE/SWEEP/measurements.csv"
    )
    parser.add_argument(
        "--out", type=command.folder, default=Path("plots"), help="where DEVICE/SWEEP/ with the figures goes"
    )
    parser.add_argument("--device", help="only this device's results")
    parser.add_argument("--sweep", help="only this sweep's results")
    parser.add_argument("--time", choices=TIMES, default=HOT, help="of which times (default: hot)")
    options = parser.parse_args(arguments)
    return command.exit_code("harness.report figures", lambda: _draw_all(options))


def _draw_all(options: argparse.Namespace) -> None:
    found = find_results(options.results, options.device, options.sweep)
    for results in found:
        out = options.out / results.device / results.sweep
        out = out if options.time == HOT else out / options.time
        written = draw(results.at(options.time), out)
        ours = "cuConv" if results.on_gpu else results.shown(results.subject)
        has = "was measured" if options.time == HOT else f"has {options.time} times"
        why = f", because no case of {results.csv_path} {has} by both {ours} and a rival"
        print(f"{out}: {len(written)} files{'' if written else why}")
    if options.sweep or options.time != HOT:
        return
    for device in sorted({results.folder.parent for results in found}):
        if path := draw_networks(device, options.out / device.name):
            print(path)
