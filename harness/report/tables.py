"""The tables, in markdown, from the CSV files under results/ alone: python -m harness.tables [--readme README.md]"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from pathlib import Path

import pandas as pd

from harness import catalogue
from harness.measure import accuracy
from harness.measure import bandwidth
from harness.results import records
from harness import registry as roster
from harness.results.comparisons import (
    CASE,
    Results,
    Summary,
    algorithms,
    choice,
    compare,
    fastest,
    find_results,
    full_precision,
    geometric_mean,
    layer_label,
    problem_of,
    rivals,
    roster_order,
    summarise,
)
from harness.report.headline import with_tf32
from harness.report.markdown import NONE, markdown, times
from harness.report.memory_bound import memory_bound_table
from harness.precision import FP32, PRECISIONS
from harness.report.readme import readme_section, rewrite_readme

NEAR = 1.15  # auto's time over that of the best of its own algorithms

# What the paper reports (section 4.2): one V100, cuDNN 7.1, 602 configurations. Means are arithmetic there.
PAPER_WINS, PAPER_CASES = 50, 602
PAPER = (
    ("mean speedup of the configurations won", "1.46x"),
    ("1x1, batch 1: mean speedup", "1.23x"),
    ("1x1, batch 1: maximum", "2.29x (7-32-832)"),
    ("5x5, batch 1: mean speedup", "1.36x"),
    ("5x5, batch 1: maximum", "1.97x"),
)


def _at(summary: Summary) -> str:
    return f"{times(summary.maximum)} ({summary.at})" if summary.at else NONE


def networks_table() -> str:
    """Table 1 of the paper, from the catalogue: the stride-1 layers of each network that the paper's sweep measures."""
    networks = catalogue.known_networks()
    columns = [_network_column(catalogue.load_sweep("paper", networks=[name])) for name in networks]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    whole = catalogue.load_sweep("paper")
    layers, batches = len({case.layer for case in whole.cases}), len({case.batch for case in whole.cases})
    note = f"Together {layers} distinct layers; with {batches} batch sizes {len(whole.cases)} configurations."
    return markdown(["", *networks], rows) + f"\n\n{note}"


def _network_column(sweep: catalogue.Sweep) -> dict[str, str]:
    layers = list(dict.fromkeys(case.layer for case in sweep.cases))
    smallest = min(layer.h for layer in layers)
    deepest = max((layer for layer in layers if layer.h == smallest), key=lambda layer: layer.c)
    share = Counter(layer.k for layer in layers)
    return {
        "distinct layers": str(len(layers)),
        **{f"{k}x{k} filters": f"{share[k]} ({share[k] / len(layers):.1%})" for k in (1, 3, 5)},
        "input H and W": f"{smallest} to {max(layer.h for layer in layers)}",
        "filters M": f"{min(layer.m for layer in layers)} to {max(layer.m for layer in layers)}",
        "depth C": f"{min(layer.c for layer in layers)} to {max(layer.c for layer in layers)}",
        "smallest input, at its deepest": f"{deepest.h}x{deepest.w}x{deepest.c}",
    }


def _grouped(frame: pd.DataFrame) -> list[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Rows by (provider, algorithm, precision) in display order; an engine's knob choices are one algorithm."""
    names = [_merged_name(*pair) for pair in algorithms(frame)]
    groups = list(frame.assign(name=names).groupby(["provider", "name", "precision"]))

    def order(group):
        provider, name, precision = group[0]
        number = re.match(r"eng(\d+)$", name)
        return roster_order(provider, name)[:2], int(number[1]) if number else -1, name, precision

    return sorted(groups, key=order)


def _merged_name(provider: str, algorithm: str) -> str:
    engine = re.match(r"eng\d+", algorithm) if provider == "cudnn_engine" else None
    return engine[0] if engine else algorithm


def algorithms_table(frame: pd.DataFrame, device: str) -> str:
    """Table 2 of the paper, with what came of each algorithm: on how many cases it ran, and on how many it won.

    An algorithm wins a case with the smallest mean_us: among the rivals of cuConv, and overall. TF32 never wins.
    """
    cases = len(frame.drop_duplicates(CASE))
    timed = full_precision(frame)
    against, overall = _wins(fastest(rivals(timed, device))), _wins(fastest(timed))
    is_rival = roster.comparison(device).is_rival
    rows = []
    for (provider, name, precision), group in _grouped(frame):
        ran, otherwise = _statuses(group, cases)
        fp32 = precision == FP32
        rows.append([
            roster.shown(provider, name), precision, f"{ran} of {cases}",
            against[provider, name] if fp32 and is_rival(provider, name) else NONE,
            overall[provider, name] if fp32 else NONE, otherwise,
        ])  # fmt: skip
    header = ["algorithm", "precision", "ran", "best rival", "best of all", "otherwise"]
    return markdown(header, rows, left=(0, 1, 5))


def _wins(best: pd.DataFrame) -> Counter:
    return Counter((provider, _merged_name(provider, name)) for provider, name in algorithms(best))


def _statuses(group: pd.DataFrame, cases: int) -> tuple[int, str]:
    """On how many cases it ran, and why not elsewhere; of several rows of a case the best counts."""
    severity = ("ok", "incorrect", "workspace_exceeded", "timeout", "error", "unsupported")
    best = group.assign(rank=group.status.map(severity.index)).groupby(CASE)["rank"].min()
    counts = Counter(severity[rank] for rank in best)
    parts = [f"{status} {counts[status]}" for status in severity[1:] if counts[status]]
    if len(best) < cases:
        parts.append(f"not offered {cases - len(best)}")
    return counts["ok"], ", ".join(parts) or NONE


def summary_table(frame: pd.DataFrame, device: str) -> str:
    """For each subject what it won, the means and the largest speedup, by filter size and batch.

    Plain text that is markdown too. The headline counts a case without a rival's time neither way, and says so.
    """
    table = compare(frame, device)
    if table.empty:
        return "Nothing of cuConv was measured here, so there is nothing to compare."
    return "\n\n".join(_subject_summary(rows, device) for _, rows in table.groupby("subject", sort=False))


def _subject_summary(rows: pd.DataFrame, device: str) -> str:
    who = roster.comparison(device)
    name, total = roster.shown(who.provider, rows.subject.iloc[0]), summarise(rows)
    if not total.of:
        return f"{name}: no case has a rival's time to compare with."
    lines = [
        f"{name} against {who.rivals_label} on {device}: faster on {total.wins} of {total.of} cases "
        f"({total.wins / total.of:.2%}).",
        f"Speedup: geometric mean {times(total.geometric)}, maximum {_at(total)}.",
    ]
    compared = rows[rows.rival_us.notna()]
    if failed := int(compared.mean_us.isna().sum()):
        lines.append(f"It has no FP32 time for {failed} of them: not won, and not in the means.")
    if len(compared) < len(rows):
        lines.append(f"Left out, as no rival has a time: {len(rows) - len(compared)}.")
    cublas = rows.assign(rival_us=rows.cublas_us, speedup=rows.cublas_speedup)
    if cublas.rival_us.notna().any():
        other = summarise(cublas)
        mean = times(other.geometric)
        lines.append(f"Against cuBLAS, where it applies: faster on {other.wins} of {other.of}, geometric mean {mean}.")
    return "\n".join(lines) + "\n\n" + _by_filter_and_batch(rows)


def _by_filter_and_batch(rows: pd.DataFrame) -> str:
    body = []
    for k, same_filter in rows.groupby("k"):
        parts = [(str(batch), members) for batch, members in same_filter.groupby("batch")]
        if len(parts) > 1:
            parts.append(("all", same_filter))
        for batch, members in parts:
            s = summarise(members)
            won = f"{s.wins} of {s.of}" if s.of else NONE
            body.append([f"{k}x{k}", batch, won, times(s.geometric), times(s.arithmetic), _at(s)])
    return markdown(["filter", "batch", "won", "geometric mean", "arithmetic mean", "maximum"], body)


def paper_table(frame: pd.DataFrame, device: str) -> str:
    """What the paper reports on its V100, and the same figures of each subject here; arithmetic means, as there."""
    subjects = dict(list(compare(frame, device).groupby("subject", sort=False)))
    provider = roster.comparison(device).provider
    header = ["", "paper (V100)", *(roster.shown(provider, subject) for subject in subjects)]
    mine = [_paper_figures(rows) for rows in subjects.values()]
    paper = [("configurations won", _share(PAPER_WINS, PAPER_CASES)), *PAPER]
    return markdown(header, [[label, figure, *(m[i] for m in mine)] for i, (label, figure) in enumerate(paper)])


def floor_table(frame: pd.DataFrame, device: str) -> str:
    """The first subject by batch size: against cuDNN, against the best of cuDNN and cuBLAS, and beside the floor.

    The floor of a case is max(FLOP / 120 TFLOP/s, bytes / 4 TB/s, 2.5 us); its column is the geometric mean of
    time over floor, and the case that is furthest from it.
    """
    who, table = roster.comparison(device), compare(frame, device)
    rows = []
    for batch, cases in table[table.subject == who.subjects[0]].groupby("batch"):
        both = cases.assign(rival_us=cases[["rival_us", "cublas_us"]].min(axis=1))
        both["speedup"] = both.rival_us / both.mean_us
        distance = (cases.mean_us / cases.floor_us).dropna()
        furthest = f"{distance.max():.1f} ({layer_label(cases.loc[distance.idxmax()])})" if len(distance) else NONE
        cells = []
        for s in (summarise(cases), summarise(both)):
            cells += [times(s.geometric), s.of - s.wins]
        rows.append([batch, *cells, f"{geometric_mean(distance):.2f}", furthest])
    header = ["batch", "over cuDNN", "lost", "over cuDNN and cuBLAS", "lost", "time / floor", "furthest (HW-M-C)"]
    return markdown(header, rows)


def choice_table(frame: pd.DataFrame, device: str, precision: str = FP32) -> str:
    """How far auto is behind the best of cuConv's own algorithms, by batch size; empty where nothing compares."""
    table = choice(frame, device, precision)
    groups = [(str(batch), rows) for batch, rows in table.groupby("batch")]
    if len(groups) > 1:
        groups.append(("all", table))
    body = []
    for batch, rows in groups:
        worst = rows.loc[rows.behind.idxmax()]
        near = f"{int((rows.behind <= NEAR).sum())} of {len(rows)}"
        at = f"{times(worst.behind)} ({problem_of(worst).label}, {worst.best_algorithm} is best)"
        body.append([batch, times(rows.behind.median()), times(geometric_mean(rows.behind)), near, at])
    header = ["batch", "median", "geometric mean", f"within {NEAR - 1:.0%}", "worst"]
    return markdown(header, body) if body else ""


def _share(wins: int, of: int) -> str:
    return f"{wins} of {of} ({wins / of:.2%})" if of else NONE


def _paper_figures(rows: pd.DataFrame) -> list[str]:
    total, won = summarise(rows), summarise(rows[rows.speedup > 1])
    figures = [_share(total.wins, total.of), times(won.arithmetic)]
    for k in (1, 5):
        single = summarise(rows[(rows.k == k) & (rows.batch == 1)])
        figures += [times(single.arithmetic), _at(single)]
    return figures


def accuracy_table(frame: pd.DataFrame, device: str) -> str:
    """Median and worst rel_l2_error of each algorithm over the cases it ran, and ours beside implicit_gemm.

    The last column: on how many cases ours has more than twice the error of cuDNN's implicit_gemm on the same data,
    of those where both ran.
    """
    ran = frame[frame.status == "ok"]
    plain = full_precision(frame)
    plain = plain[(plain.provider == "cudnn") & (plain.algorithm == "implicit_gemm")][[*CASE, "rel_l2_error"]]
    rows = []
    for (provider, name, precision), group in _grouped(ran):
        both = group.merge(plain, on=CASE, suffixes=("", "_plain"))
        over = int((both.rel_l2_error > 2 * both.rel_l2_error_plain).sum())
        ours = precision == FP32 and provider == roster.comparison(device).provider == "cuconv" and len(both)
        rows.append([
            roster.shown(provider, name), precision, len(group.drop_duplicates(CASE)),
            f"{group.rel_l2_error.median():.1e}", f"{group.rel_l2_error.max():.1e}",
            f"{over} of {len(both)}" if ours else NONE,
        ])  # fmt: skip
    return markdown(["algorithm", "precision", "cases", "median", "worst", "over 2x implicit_gemm"], rows, left=(0, 1))


def report(result: Results) -> str:
    """All tables of one results folder; the comparison with the paper where there is a GPU."""
    frame, device = records.read(result.csv_path), result.device
    own = {precision: choice_table(frame, device, precision) for precision in PRECISIONS}
    allowed = with_tf32(frame, device)
    parts = [
        f"## {device}, sweep {result.sweep}",
        "### Speedup\n\n" + summary_table(frame, device),
        *(["### Against cuDNN with TF32 allowed\n\n" + allowed] if allowed else []),
        "### Algorithms\n\n" + algorithms_table(frame, device),
        *(f"### auto over the best of cuConv's own algorithms, {p}, time\n\n" + own[p] for p in PRECISIONS if own[p]),
        "### Accuracy: relative L2 error against float64\n\n" + accuracy_table(frame, device),
    ]
    if device != "cpu" and not compare(frame, device).empty:
        if compare(frame, device).rival_us.notna().any():
            parts.insert(2, "### Beside the paper\n\n" + paper_table(frame, device))
            parts.append("### Accuracy where magnitudes are far from ordinary\n\n" + _magnitudes(result))
        copies = result.csv_path.parent.parent / bandwidth.FOLDER / bandwidth.CSV
        if shares := memory_bound_table(frame, device, copies):
            parts.insert(2, "### Memory-bound layers beside copies\n\n" + shares)
        parts.insert(2, "### Beside the floor\n\n" + floor_table(frame, device))
    return "\n\n".join(parts)


def _magnitudes(result: Results) -> str:
    path = result.csv_path.parent.parent / accuracy.FOLDER / accuracy.CSV
    if not path.exists():
        return f"Not measured on {result.device}: run 'python -m harness.accuracy' there."
    return accuracy.magnitudes_table(accuracy.read(path))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.tables", description="Print the tables of the results.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of DEVICE/SWEEP/measurements.csv")
    parser.add_argument("--device", help="only this device's results")
    parser.add_argument("--sweep", help="only this sweep's results (with --readme: paper, unless given)")
    parser.add_argument("--readme", type=Path, help="rewrite this README's results instead; a CPU's only if named")
    options = parser.parse_args(arguments)
    try:
        if options.readme:
            _fill_readme(options)
        else:
            found = find_results(options.results, options.device, options.sweep)
            print("## Layers\n\n" + networks_table())
            for result in found:
                print("\n" + report(result))
    except (records.ResultsError, catalogue.CatalogueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _fill_readme(options: argparse.Namespace) -> None:
    found = find_results(options.results, options.device, options.sweep or "paper")
    shown = [result for result in found if options.device or result.device != "cpu"]
    if not shown:
        raise records.ResultsError(f"only a CPU's results under {options.results}: ask for them with --device cpu")
    plots = os.path.relpath(options.results.resolve().parent / "plots", options.readme.resolve().parent)
    rewrite_readme(options.readme, "\n\n".join(readme_section(result, plots) for result in shown))
    print(f"{options.readme}: results of {', '.join(result.device for result in shown)}")


if __name__ == "__main__":
    raise SystemExit(main())
