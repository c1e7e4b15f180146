"""The first figures that a reader sees: the paper's sweep in FP32 and with TF32 allowed, and whole networks."""

from __future__ import annotations

from harness.experiments.networks.table import networks_results, over_torch
from harness.precision import FP32, TF32
from harness.store.markdown import NONE, markdown, of, times
from harness.sweep.comparisons import Results, compare_with_tf32, each, geometric_mean, problem_of, summarise, timed
from harness.sweep.provenance import provenance


def front_table(results: Results) -> str:
    """A line for each comparison: the geometric mean of its speedups, the cases won, and the smallest speedup.

    Comparisons that were not measured are left out.
    """
    rivals, subject = results.comparison.rivals_label, results.shown(results.subject)
    compared = {
        f"{rivals} in FP32": results.of_subject(),
        f"{rivals}, TF32 allowed": compare_with_tf32(results, FP32),
    }
    body = []
    for baseline, rows in compared.items():
        if (total := summarise(rows)).of:
            (worst,) = each(rows.nsmallest(1, "speedup"))
            least = f"{times(worst.speedup)} ({problem_of(worst).label})" if worst.speedup == worst.speedup else NONE
            cases = f"{total.of} cases of single layers, {subject} in FP32"
            body.append([cases, baseline, times(total.geometric), of(total.wins, total.of), least])
    whole = networks_results(results.folder.parent)
    if whole and (networks := over_torch(whole.frame)):
        (where, least_speedup) = min(networks.items(), key=lambda pair: pair[1])
        won = sum(speedup > 1 for speedup in networks.values())
        mean, least = times(geometric_mean(list(networks.values()))), f"{times(least_speedup)} ({where})"
        converted = f"{len(networks)} cases of whole networks, converted, FP32"
        body.append([converted, "fastest of torch in FP32, CUDA graphs", mean, of(won, len(networks)), least])
    header = ["what", "baseline", "speedup, geometric mean", "won", "smallest speedup"]
    sources = [provenance(results, timed(results.frame, FP32, TF32))]
    if whole:
        sources.append(f"whole networks: {provenance(whole)}")
    return markdown(header, body, left=(0, 1)) + f"\n\nMeasured on {'; '.join(sources)}."
