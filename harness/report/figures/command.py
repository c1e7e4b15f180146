"""python -m harness report figures: redraw every figure from the CSV files under results/ alone."""

from __future__ import annotations

import argparse

from harness import command
from harness.report.figures import draw
from harness.report.figures.networks import draw_networks
from harness.report.options import add_out, add_source, add_subject
from harness.store.times import HOT, TIMES
from harness.sweep.comparisons import find_results


def _draw_all(options: argparse.Namespace) -> None:
    found = find_results(options.results, options.device, options.sweep, options.subject)
    for results in found:
        out = options.out / results.device / results.sweep
        out = out if options.time == HOT else out / options.time
        out = out if options.subject is None else out / "_".join(options.subject)
        written = draw(results.at(options.time), out)
        ours = "cuConv" if results.on_gpu and options.subject is None else results.shown(results.subject)
        has = "was measured" if options.time == HOT else f"has {options.time} times"
        why = f", because no case of {results.csv_path} {has} by both {ours} and a rival"
        print(f"{out}: {len(written)} files{'' if written else why}")
    if options.sweep or options.subject or options.time != HOT:
        return
    for device in sorted({results.folder.parent for results in found}):
        if path := draw_networks(device, options.out / device.name):
            print(path)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_subject(parser)
    add_out(parser)
    parser.add_argument("--time", choices=TIMES, default=HOT, help="of which times (default: hot)")


main = command.program("harness report figures", "Redraw the figures from the results.", _draw_all, _add_options)
