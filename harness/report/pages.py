"""python -m harness report docs: rewrite the tables between the markers of README.md and docs/*.md.

A page has two lines for each table, and what stands between them belongs to this command:

    <!-- table:algorithm fp16x3 -->
    <!-- table:end -->

A marker stands alone on its line. The tables are of the GPU under results/ that has the most sweeps, and most of them
show the paper's sweep; `front` and `devices` look at every GPU. They come from CSV files alone.
Everything else in a page stays as it is.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from harness import command
from harness.errors import ResultsError, UsageError
from harness.experiments.accuracy.rows import ACCURACY
from harness.experiments.accuracy.table import magnitudes_of
from harness.experiments.conditions.rows import CONDITION_TIMES
from harness.experiments.conditions.table import conditions_of
from harness.experiments.host.rows import HOST
from harness.experiments.host.table import host_table
from harness.experiments.kernels.table import counters_of
from harness.experiments.latency.table import latency_sizes, latency_starts
from harness.experiments.networks.resources import energy_section, memory_section
from harness.experiments.networks.table import (
    engines_section,
    errors_section,
    half_section,
    modes_section,
    networks_section,
)
from harness.precision import FP16, FP32, HALVES, MEASURED, PRECISIONS, TF32
from harness.report import floor
from harness.report.accurate import accuracy_sentence
from harness.report.algorithms import errors_table
from harness.report.api import api_table
from harness.report.choice import algorithm_names, algorithm_table, choice_table, invariance_table
from harness.report.devices import devices_table, reference
from harness.report.drawn import RANDOM, drawn_table, speedups
from harness.report.figure_index import figures_table
from harness.report.front import FUSED_SWEEP, front_table
from harness.report.half import at_other_times, half_table, in_channels_last
from harness.report.memory_bound import depthwise_table, memory_bound_table
from harness.report.options import add_results
from harness.report.paper import paper_table
from harness.report.prepared import prepared_table
from harness.report.speedups import (
    against_others,
    grid_table,
    headline_table,
    smallest_sentence,
    tf32_sentence,
    with_tf32,
    worst_table,
)
from harness.report.sweeps import sweeps_table
from harness.report.unlimited import unlimited_sentences
from harness.store.files import read_regular, write_whole
from harness.store.table import ENVIRONMENT, Table
from harness.store.times import NOTES
from harness.sweep.comparisons import Results, find_results, full_precision, timed
from harness.sweep.provenance import mixture, mixture_with_rivals, provenance

SWEEP = "paper"
SWEEPS = ("strided", "grouped", "fully_connected", "unseen")  # the other sweeps of a page
WITH_EPILOGUE = (FUSED_SWEEP, "bias_add_relu")
END = "<!-- table:end -->"
BEGIN = re.compile(r"^<!-- table:(?!end )(\S+)((?: \S+)*) -->$", re.MULTILINE)


def rewrite(page: Path, found: Sequence[Results], plots: Path, check: bool = False) -> int:
    """Rewrite the tables of a page from the results of the devices, and return their number.

    plots: the folder of the figures. check: raise ResultsError where the page would change, and leave it. Raises
    UsageError where the page cannot be read, where a marker has no end or names no table.
    """
    try:
        text = read_regular(page).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UsageError(f"cannot read {page} ({reason}): name pages that exist") from None
    link = os.path.relpath(plots.resolve(), page.resolve().parent)
    pieces, at, tables = [], 0, 0
    while begin := BEGIN.search(text, at):
        end = text.find(f"\n{END}", begin.end()) + 1
        following = BEGIN.search(text, begin.end())
        if not end or (following and following.start() < end):
            raise UsageError(f"{page}: {begin[0]} has no {END} of its own: add that line below it")
        table = _table(f"{page}: {begin[0]}", begin[1], begin[2].split(), found, link)
        pieces.append(f"{text[at : begin.end()]}\n{table}\n")
        at, tables = end, tables + 1
    written = "".join(pieces) + text[at:]
    if written != text and check:
        raise ResultsError(f"{page} shows other results than the CSV files: run 'python -m harness report docs'")
    if written != text:
        write_whole(page, written)
    return tables


def _table(where: str, name: str, arguments: list[str], found: Sequence[Results], plots: str) -> str:
    """The table of a marker: of the reference device, or of all."""
    if name not in TABLES and name not in OF_EVERY_GPU:
        raise UsageError(f"{where}: there is no table {name!r}: must be one of {', '.join([*TABLES, *OF_EVERY_GPU])}")
    allowed = ARGUMENTS.get(name, ())
    if arguments and not allowed:
        raise UsageError(f"{where}: the table {name!r} takes nothing more: remove {' '.join(arguments)!r}")
    known = all(argument in choice for argument, choice in zip(arguments, allowed, strict=False))
    if allowed and not (1 <= len(arguments) <= len(allowed) and known):
        choices = ", then one of ".join(", ".join(choice) for choice in allowed)
        raise UsageError(f"{where}: the table {name!r} takes one of {choices}")
    if name in OF_EVERY_GPU:
        return OF_EVERY_GPU[name](found)
    return TABLES[name](reference(found), plots, *arguments)


def _headline(results: Results) -> str:
    who = results.comparison
    note = f"Speedup over {who.rivals_label} of each case in FP32: geometric mean, and cases won."
    if len(results.every_time) > 1:
        meanings = ", ".join(f"{one.time} ({NOTES[one.time]})" for one in results.every_time)
        note += f" Times are {meanings}, each compared with the fastest cuDNN timed in the same way."
    sentences = accuracy_sentence(results), tf32_sentence(results), _measured(results)
    parts = [note, headline_table(results), *sentences]
    return "\n\n".join(part for part in parts if part)


def _measured(results: Results) -> str:
    rows = full_precision(results.frame)
    compared = rows.algorithm.isin(results.comparison.subjects) | (rows.provider != results.comparison.provider)
    warning = mixture(results, rows[compared])
    return f"Measured on {provenance(results, rows)}. {warning}".strip()


def _beside(results: Results, table: str, ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    """A comparison with less precise rivals, and a warning where the rows are of several codes."""
    return "\n\n".join(part for part in (table, mixture_with_rivals(results, ours, theirs)) if part)


def _figures(results: Results, plots: str) -> str:
    """A line of links to the figures of a sweep."""
    names = {"cases": "overview", "layers by batch": "map", "rivals": "rivals"}
    if floor.of_rows(results, results.of_subject(), FP32) is not None:
        names["share of the floor"] = "floor"
    links = [f"[{text}]({plots}/{results.device}/{results.sweep}/{name}.png)" for text, name in names.items()]
    return f"Figures: {', '.join(links)}."


def _standing(results: Results, plots: str) -> str:
    subject, rivals = results.shown(results.subject), results.comparison.rivals_label
    shares = floor.columns(results, results.of_subject(), FP32)
    sentences = [floor.explained(results.device, FP32), floor.above(FP32)] if shares else []
    return "\n\n".join([
        " ".join([f"Speedup of {subject} over {rivals} in FP32. {_measured(results)}", *sentences]),
        _figures(results, plots),
        grid_table(results.of_subject(), shares),
        *against_others(results.of_subject(), results.comparison.provider),
        "The cases of the smallest speedups, HW-N-K-M-C:",
        worst_table(results, results.of_subject()),
    ])  # fmt: skip


def _algorithm(results: Results, name: str, sweep: str = SWEEP) -> str:
    """When auto takes an algorithm, in the paper's sweep or another one of the same device."""
    other = results.beside(sweep)
    return algorithm_table(other, name) if other else f"The sweep {sweep} was not measured on {results.device}."


def _sweep(results: Results, plots: str, name: str) -> str:
    """The speedups of another sweep of the same device, by batch and filter size, and the smallest of them."""
    other = results.beside(name)
    if other is None:
        return f"The sweep {name} was not measured on {results.device}."
    subject, rivals = other.shown(other.subject), other.comparison.rivals_label
    return "\n\n".join([
        f"Speedup of {subject} over {rivals} in FP32. {_measured(other)}",
        _figures(other, plots),
        grid_table(other.of_subject()),
        *against_others(other.of_subject(), other.comparison.provider),
        *filter(None, [smallest_sentence(other)]),
    ])  # fmt: skip


def _sweep_in_half(results: Results, plots: str, name: str) -> str:
    """The speedups of another sweep of the same device in FP16, by batch and filter size."""
    other = results.beside(name)
    table = in_channels_last(other, FP16) if other else ""
    if other is None or not table:
        return f"The sweep {name} was not measured in FP16 on {results.device}."
    return _beside(other, table, (FP16,), (FP16,))


def _random(results: Results, plots: str) -> str:
    """How fast auto is on layers that a seed draws, and how well it chooses there, where they were measured."""
    other = results.beside(RANDOM)
    table = drawn_table(other) if other else ""
    if other is None or not table:
        return f"The sweep {RANDOM} was not measured on {results.device}."
    parts = [table]
    if len(speedups(other, FP32)):  # the figure has no other precision
        path = f"{plots}/{other.device}/{RANDOM}/planes.png"
        parts.append(f"[Figure]({path}): every case in FP32, by plane and filter size.")
    return "\n\n".join([*parts, _measured_in_each(other)])


def _measured_in_each(results: Results) -> str:
    """Where each precision with rows was measured, and a warning where its rows are of several codes."""
    parts = []
    for precision in MEASURED:
        if len(rows := timed(results.frame, precision)):
            warning = mixture_with_rivals(results, (precision,), (precision,))
            parts.append(f"{precision.upper()} measured on {provenance(results, rows)}. {warning}".strip())
    return " ".join(parts)


def _channels_last(found: Sequence[Results]) -> str:
    """cuConv in channels last against cuDNN in each precision, by every kind of time, where it was measured."""
    tables = [
        _beside(results, f"{table}\n\n{at_other_times(results, precision)}".rstrip(), (precision,), (precision,))
        for results in found
        for precision in (*HALVES, TF32)
        if (table := in_channels_last(results, precision))
    ]
    return "\n\n".join(tables) or "Not measured: 'python -m harness.run --precision fp16' measures it on a GPU."


def _accuracy(results: Results) -> str:
    return "\n\n".join([
        "Relative L2 error over the paper's sweep, normal data:",
        errors_table(results),
        "The largest relative L2 error at batch 4, on ordinary and on scaled data:",
        _dated(results, ACCURACY, magnitudes_of(results)),
    ])  # fmt: skip


def _dated(results: Results, kind: Table, text: str) -> str:
    """The tables of an experiment, and where and when it was measured if it was.

    kind: its file, which one command writes whole, so that every report in its folder is of it.
    """
    if kind.find(results.folder.parent) is None:
        return text
    unnamed = pd.DataFrame(columns=[ENVIRONMENT])
    whole = Results(results.device, kind.folder, unnamed, results.folder.with_name(kind.folder))
    return f"{text}\n\nMeasured on {provenance(whole)}."


# The tables that look at every GPU, by their names in markers: a function of the results of all.
OF_EVERY_GPU: dict[str, Callable[[Sequence[Results]], str]] = {
    "front": front_table,
    "channels_last": _channels_last,
    "api": lambda found: api_table(),
    "devices": lambda found: devices_table(found, (SWEEP, *SWEEPS)),
}
# Each table by its name in a marker: a function of the results, the path of the plots, and what follows the name.
TABLES: dict[str, Callable[..., str]] = {
    "headline": lambda results, plots: _headline(results),
    "standing": _standing,
    "sweeps": lambda results, plots: sweeps_table(results),
    "sweep": _sweep,
    "sweep_in_half": _sweep_in_half,
    "algorithm": lambda results, plots, *which: _algorithm(results, *which),
    "random": _random,
    "choice": lambda results, plots: choice_table(results),
    "accuracy": lambda results, plots: _accuracy(results),
    "invariance": lambda results, plots: invariance_table(results),
    "memory_bound": lambda results, plots: memory_bound_table(results),
    "depthwise": lambda results, plots: depthwise_table(results.beside("grouped"), results.device),
    "tf32": lambda results, plots: _beside(results, with_tf32(results), PRECISIONS, PRECISIONS),
    "half": lambda results, plots: _beside(results, half_table(results), (FP32,), (FP16,)),
    "unlimited": lambda results, plots: unlimited_sentences(results),
    "paper": lambda results, plots: paper_table(results),
    "counters": lambda results, plots, name: counters_of(results.folder.parent, name),
    "conditions": lambda results, plots: _dated(results, CONDITION_TIMES, conditions_of(results.folder.parent)),
    "host": lambda results, plots: _dated(results, HOST, host_table(results)),
    "latency_sizes": lambda results, plots: latency_sizes(results),
    "latency_starts": lambda results, plots: latency_starts(results),
    "prepared": lambda results, plots: prepared_table(results),
    "network_modes": lambda results, plots: modes_section(results.folder.parent),
    "network_engines": lambda results, plots: engines_section(results.folder.parent),
    "network_energy": lambda results, plots: energy_section(results.folder.parent),
    "network_memory": lambda results, plots: memory_section(results.folder.parent),
    "network_half": lambda results, plots: half_section(results.folder.parent),
    "network_errors": lambda results, plots: errors_section(results.folder.parent),
    "figures": lambda results, plots: figures_table(results.folder.parents[2] / "plots", plots),
    "networks": lambda results, plots: networks_section(results.folder.parent, plots),
}
# The choices of what follows a name: the first is required, the second optional.
ARGUMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "algorithm": (tuple(algorithm_names()), SWEEPS),
    "counters": (tuple(algorithm_names()),),
    "sweep": ((*SWEEPS, *WITH_EPILOGUE),),
    "sweep_in_half": ((*SWEEPS, *WITH_EPILOGUE),),
}


def _rewrite_all(options: argparse.Namespace) -> None:
    pages = options.pages or [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
    found = [results for results in find_results(options.results, sweep=SWEEP) if results.on_gpu]
    if not found:
        raise ResultsError(f"only a CPU's results under {options.results}: pages show a GPU's")
    for page in pages:
        if tables := rewrite(page, found, options.results.parent / "plots", options.check):
            print(f"{page}: {tables} {'table' if tables == 1 else 'tables'}")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pages", nargs="*", type=Path, help="pages to rewrite (default: README.md and docs/*.md)")
    parser.add_argument("--check", action="store_true", help="fail where a page would change, and change nothing")
    add_results(parser)


main = command.program(
    "harness report docs",
    "Rewrite the tables between the markers of pages, from the CSV files of the results.",
    _rewrite_all,
    _add_options,
)
