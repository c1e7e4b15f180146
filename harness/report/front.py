"""The first figures that a reader sees: the paper's sweep against cuDNN in FP32, TF32 and FP16, and whole networks."""

from __future__ import annotations

from functools import partial

import pandas as pd

from harness.experiments.networks.rows import NETWORKS
from harness.experiments.networks.table import ENGINES, HALF, TORCH, first_of_devices, summary_beside
from harness.precision import FP32, MEASURED
from harness.report.half import compare_with_half
from harness.report.speedups import tf32_layouts
from harness.store.markdown import NONE, markdown, of, times
from harness.sweep.comparisons import (
    Results,
    compare_with_tf32,
    each,
    geometric_mean,
    grouped,
    problem_of,
    summarise,
    timed,
)
from harness.sweep.provenance import mixture_with_rivals, provenance

NETWORKS_BESIDE = {
    "fastest of torch in FP32": TORCH,
    "cuDNN's fastest engines in FP32": ENGINES,
    "fastest of torch in FP16": HALF,
}


def front_table(results: Results) -> str:
    """A line for each comparison: the geometric mean of its speedups, the cases won, and the smallest speedup.

    Comparisons that were not measured are left out; one of whole networks that was measured on another GPU alone names
    it. Sentences below say at which batch sizes FP32 is faster than less
    precise rivals, and where, when and with which versions the rows were measured.
    """
    best = results.comparison.rivals_label
    compared = {
        f"{best} in FP32": results.of_subject(),
        f"{best} with TF32 allowed{tf32_layouts(results)}": compare_with_tf32(results, FP32),
        f"{best} in FP16": compare_with_half(results),
    }
    compared = {baseline: rows for baseline, rows in compared.items() if summarise(rows).of}
    body = [_line(results, baseline, rows) for baseline, rows in compared.items()]
    header = ["what", "baseline", "speedup, geometric mean", "won", "smallest speedup"]
    rows_of = {precision.upper(): timed(results.frame, precision) for precision in MEASURED}
    sources = {name: provenance(results, rows) for name, rows in rows_of.items() if not rows.empty}
    for name, baseline in NETWORKS_BESIDE.items():
        whole, found = first_of_devices(results.folder.parent, NETWORKS, partial(summary_beside, baseline=baseline))
        if whole and found:
            source = provenance(whole)
            elsewhere = "" if whole.device == results.device else f", {source.partition(', ')[0]}"
            cases, *cells = found
            body.append(
                [f"{cases} cases of whole networks, converted, FP32{elsewhere}", f"{name}, CUDA graphs", *cells]
            )
            sources["whole networks of another GPU" if elsewhere else "whole networks"] = source
    named = {source: ", ".join(name for name in sources if sources[name] == source) for source in sources.values()}
    if len(named) == 1:
        measured = f"Measured on {next(iter(named))}."
    else:
        measured = f"Measured: {'; '.join(f'{names} on {source}' for source, names in named.items())}."
    parts = [markdown(header, body, left=(0, 1)), _ahead(compared)]
    parts.append(f"{measured} {mixture_with_rivals(results, (FP32,), MEASURED)}".strip())
    return "\n\n".join(part for part in parts if part)


def _line(results: Results, baseline: str, rows: pd.DataFrame) -> list[str]:
    total = summarise(rows)
    (worst,) = each(rows.nsmallest(1, "speedup"))
    least = f"{times(worst.speedup)} ({problem_of(worst).label})" if worst.speedup == worst.speedup else NONE
    cases = f"{total.of} cases of single layers, {results.shown(results.subject)} in FP32"
    return [cases, baseline, times(total.geometric), of(total.wins, total.of), least]


def _ahead(compared: dict[str, pd.DataFrame]) -> str:
    """A sentence on the batch sizes with a mean above 1x, for each baseline over which not all have one."""
    found = []
    for baseline, rows in compared.items():
        means = {batch: geometric_mean(members.speedup) for batch, members in grouped(rows, "batch")}
        ahead = [f"{batch} ({times(mean)})" for batch, mean in means.items() if mean > 1]
        if len(ahead) < len(means):
            found.append(f"over {baseline}: {', '.join(ahead) or 'none'}")
    return f"Batch sizes with a mean above 1x, {'; '.join(found)}." if found else ""
