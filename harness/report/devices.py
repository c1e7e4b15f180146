"""Every GPU that was measured: one line for each of its sweeps, and for its whole networks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.experiments.networks.table import TORCH, networks_results, summary_beside
from harness.store.markdown import NONE, markdown, of, times
from harness.store.times import TIMES
from harness.sweep.comparisons import Results, each, full_precision, problem_of, summarise, sweeps_of
from harness.sweep.provenance import provenance

HEADER = ("GPU", "measured", *TIMES, *(f"won, {time}" for time in TIMES), "smallest speedup, hot")


def reference(found: Sequence[Results]) -> Results:
    """The results that the pages are about: of the device with the most sweeps, or of equals with the most rows."""
    return max(found, key=lambda results: (len(sweeps_of(results.folder.parent)), len(results.frame)))


def devices_table(found: Sequence[Results], sweeps: Sequence[str]) -> str:
    """A line for each of the named sweeps of each device, and one for whole networks, in FP32.

    The speedups are geometric means, over the best cuDNN and over the fastest of torch.
    """
    body = []
    for results in found:
        measured = [sweep for name in sweeps if (sweep := results.beside(name)) and not sweep.of_subject().empty]
        body += [[*_who(sweep, full_precision(sweep.frame)), *_speedups(sweep)] for sweep in measured]
        if (whole := networks_results(results.folder.parent)) and (cells := summary_beside(whole.frame, TORCH)):
            _, mean, won, least = cells
            body.append([*_who(whole, whole.frame), mean, NONE, NONE, won, NONE, NONE, least])
    return markdown(HEADER, body, left=(0, 1))


def _who(results: Results, rows: pd.DataFrame) -> list[str]:
    """The cells of the GPU and of what was measured, with versions and dates."""
    gpu, _, where = provenance(results, rows).partition(", ")
    return [gpu, f"{results.sweep}: {where}" if where else results.sweep]


def _speedups(results: Results) -> list[str]:
    """The cells of a sweep behind its name."""
    totals = {one.time: summarise(one.of_subject()) for one in results.every_time}
    measured = [totals.get(time) for time in TIMES]
    means = [times(total.geometric) if total else NONE for total in measured]
    wins = [of(total.wins, total.of) if total else NONE for total in measured]
    (worst,) = each(results.of_subject().nsmallest(1, "speedup"))
    return [*means, *wins, f"{times(worst.speedup)} ({problem_of(worst).label})"]
