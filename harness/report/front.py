"""The first figures that a reader sees: the paper's sweep in FP32 and with TF32 allowed, and whole networks."""

from __future__ import annotations

import pandas as pd

from harness.experiments.networks.table import networks_results, over_torch, summary_over_torch
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
from harness.sweep.provenance import provenance


def front_table(results: Results) -> str:
    """A line for each comparison: the geometric mean of its speedups, the cases won, and the smallest speedup.

    Comparisons that were not measured are left out.
    """
    rivals = results.comparison.rivals_label
    compared = [
        ("single layers", f"{rivals} in FP32", results.of_subject()),
        ("single layers", f"{rivals}, TF32 allowed{tf32_layouts(results)}", compare_with_tf32(results, FP32)),
        *((f"batch {batch}", "cuDNN in FP16", rows) for batch, rows in _until_half_is_faster(results)),
    ]
    body = [_line(results, *comparison) for comparison in compared if summarise(comparison[-1]).of]
    whole = networks_results(results.folder.parent)
    if whole and (cells := summary_over_torch(whole.frame)):
        converted = f"{len(over_torch(whole.frame))} cases of whole networks, converted, FP32"
        body.append([converted, "fastest of torch in FP32, CUDA graphs", *cells])
    header = ["what", "baseline", "speedup, geometric mean", "won", "smallest speedup"]
    rows_of = {precision.upper(): timed(results.frame, precision) for precision in MEASURED}
    sources = {name: provenance(results, rows) for name, rows in rows_of.items() if not rows.empty}
    if whole:
        sources["whole networks"] = provenance(whole)
    named = {source: ", ".join(name for name in sources if sources[name] == source) for source in sources.values()}
    if len(named) == 1:
        measured = f"Measured on {next(iter(named))}."
    else:
        measured = f"Measured: {'; '.join(f'{names} on {source}' for source, names in named.items())}."
    return f"{markdown(header, body, left=(0, 1))}\n\n{measured}"


def _line(results: Results, what: str, baseline: str, rows: pd.DataFrame) -> list[str]:
    total = summarise(rows)
    (worst,) = each(rows.nsmallest(1, "speedup"))
    least = f"{times(worst.speedup)} ({problem_of(worst).label})" if worst.speedup == worst.speedup else NONE
    cases = f"{total.of} cases of {what}, {results.shown(results.subject)} in FP32"
    return [cases, baseline, times(total.geometric), of(total.wins, total.of), least]


def _until_half_is_faster(results: Results) -> list[tuple[int, pd.DataFrame]]:
    """The comparison with FP16 at each batch size, up to the first at which FP16 is faster in the mean."""
    found = []
    for batch, rows in grouped(compare_with_half(results), "batch"):
        found.append((batch, rows))
        if geometric_mean(rows.speedup) < 1:
            break
    return found
