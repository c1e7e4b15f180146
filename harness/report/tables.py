"""python -m harness report tables: print every table of the results, in markdown, from the CSV files alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from harness import command
from harness.experiments.accuracy.table import magnitudes_of
from harness.experiments.networks.table import networks_results
from harness.experiments.networks.table import networks_table as whole_networks_table
from harness.precision import HALVES, TF32
from harness.report.algorithms import accuracy_table, algorithms_table
from harness.report.choice import choice_table, losses_table
from harness.report.drawn import RANDOM, drawn_table
from harness.report.half import compare_with_half, half_table, in_channels_last
from harness.report.memory_bound import memory_bound_table
from harness.report.options import add_source, add_subject
from harness.report.paper import networks_table, paper_table
from harness.report.speedups import headline_table, summary_table, with_tf32
from harness.sweep.comparisons import Results, find_results


def report(results: Results) -> str:
    """All tables of one results folder that its rows allow, each below a heading."""
    compares = bool(results.compared.rival_us.notna().any())
    of_ours = results.on_gpu and not results.compared.empty
    sections = {
        "Speedup": summary_table(results),
        "Speedup, hot, separated and cold": headline_table(results) if len(results.every_time) > 1 else "",
        "Memory-bound layers beside copies": memory_bound_table(results) if of_ours else "",
        "Beside the paper": paper_table(results) if of_ours and compares else "",
        "Against cuDNN with TF32 allowed": with_tf32(results),
        **{f"{p.upper()} in channels last": in_channels_last(results, p) for p in (*HALVES, TF32)},
        "Beside cuDNN in FP16": "" if compare_with_half(results).empty else half_table(results),
        "Algorithms": algorithms_table(results),
        "auto over the best of cuConv's own algorithms, time": choice_table(results),
        "What auto loses without each algorithm, time": losses_table(results),
        "Layers that nobody chose": drawn_table(results) if results.sweep == RANDOM else "",
        "Accuracy: relative L2 error against float64": accuracy_table(results),
        "Accuracy where magnitudes are far from ordinary": magnitudes_of(results) if of_ours and compares else "",
    }
    parts = [f"### {heading}\n\n{table}" for heading, table in sections.items() if table]
    return "\n\n".join([f"## {results.device}, sweep {results.sweep}", *parts])


def whole_networks(devices: Iterable[Path]) -> list[str]:
    """The table of whole networks of each folder results/DEVICE that has one, below a heading."""
    measured = [results for device in sorted(devices) if (results := networks_results(device))]
    tables = [(results.device, whole_networks_table(results.frame)) for results in measured]
    return [f"## {device}, whole networks\n\n{table}" for device, table in tables if table]


def _print(options: argparse.Namespace) -> None:
    found = find_results(options.results, options.device, options.sweep, options.subject)
    devices = set() if options.sweep or options.subject else {results.folder.parent for results in found}
    print(f"## Layers\n\n{networks_table()}")
    for table in chain(map(report, found), whole_networks(devices)):  # each as soon as it is made, since all take long
        print(f"\n{table}", flush=True)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_subject(parser)


main = command.program("harness report tables", "Print the tables of the results, in markdown.", _print, _add_options)
