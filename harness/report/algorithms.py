"""Tables of every algorithm that was measured: on how many cases it ran and won, and how accurate it is."""

from __future__ import annotations

import re
from collections import Counter

import pandas as pd

from harness.contenders import registry
from harness.precision import FP32, TF32
from harness.store.markdown import NONE, markdown, of, units
from harness.sweep.comparisons import (
    CASE,
    TIMES_PLAIN,
    Results,
    algorithms,
    display_order,
    fastest,
    full_precision,
    grouped,
    rivals,
)

OVER = f"over {TIMES_PLAIN}x implicit_gemm"
SHOWN = ("implicit_gemm", "fft", "fft_tiling", "winograd_nonfused")  # cuDNN's; the other GEMMs are as accurate
SEVERITY = ("ok", "incorrect", "workspace_exceeded", "timeout", "error", "unsupported")


def algorithms_table(results: Results) -> str:
    """The paper's Table 2, with how each algorithm fared: the cases that it ran, and the cases that it won.

    An algorithm wins a case with the smallest mean_us: among cuConv's rivals, and overall. A row in TF32 never wins.
    """
    cases = len(results.frame.drop_duplicates(CASE))
    timed = full_precision(results.frame)
    among_rivals, overall = _wins(fastest(rivals(timed, results.comparison))), _wins(fastest(timed))
    rows = []
    for provider, name, precision, group in _grouped(results.frame):
        ran, otherwise = _statuses(group, cases)
        fp32, is_rival = precision == FP32, results.comparison.is_rival(provider, name)
        rows.append([
            registry.shown(provider, name), precision, of(ran, cases),
            among_rivals[provider, name] if fp32 and is_rival else NONE,
            overall[provider, name] if fp32 else NONE, otherwise,
        ])  # fmt: skip
    header = ["algorithm", "precision", "ran", "best rival", "best of all", "otherwise"]
    return markdown(header, rows, left=(0, 1, 5))


def accuracy_table(results: Results) -> str:
    """Median and worst relative L2 error of each algorithm over the cases that it ran, and `_over`."""
    plain, rows = _plain(results), []
    for provider, name, precision, group in _grouped(results.frame[results.frame.status == "ok"]):
        ours = precision == FP32 and provider == results.comparison.provider == "cuconv"
        rows.append([
            registry.shown(provider, name), precision, len(group.drop_duplicates(CASE)),
            f"{group.rel_l2_error.median():.1e}", f"{group.rel_l2_error.max():.1e}",
            _over(group, plain) if ours else NONE,
        ])  # fmt: skip
    header = ["algorithm", "precision", "cases", "median", "worst", OVER]
    return markdown(header, rows, left=(0, 1))


def errors_table(results: Results) -> str:
    """The errors of cuConv and of cuDNN in FP32, in units of 1e-7, and a sentence on cuConv in TF32.

    Of cuDNN's classic algorithms it has SHOWN. All engines are one line.
    """
    ran, plain = results.frame[results.frame.status == "ok"], _plain(results)
    body = [
        [registry.shown(provider, name), units(group.rel_l2_error.median()), units(group.rel_l2_error.max()),
         _over(group, plain) if provider == "cuconv" else NONE]
        for provider, name, precision, group in _grouped(ran[ran.precision == FP32], every_engine=False)
        if provider in ("cuconv", "cudnn_engine") or name in SHOWN
    ]  # fmt: skip
    table = markdown(["algorithm", "median, 1e-7", "worst, 1e-7", OVER], body)
    tf32 = ran[(ran.precision == TF32) & (ran.provider == "cuconv")].rel_l2_error
    told = f"In TF32 cuConv's errors have the median {tf32.median():.1e}, and are at most {tf32.max():.1e}."
    return f"{table}\n\n{told}" if len(tf32) else table


def _plain(results: Results) -> pd.DataFrame:
    """The errors of a plain FP32 sum by case: those of cuDNN's implicit_gemm."""
    rows = full_precision(results.frame)
    return rows[(rows.provider == "cudnn") & (rows.algorithm == "implicit_gemm")][[*CASE, "rel_l2_error"]]


def _over(group: pd.DataFrame, plain: pd.DataFrame) -> str:
    """The cases with more than twice the error of a plain sum on the same data, of the cases where both ran."""
    both = group.merge(plain, on=CASE, suffixes=("", "_plain"))
    return of(int((both.rel_l2_error > TIMES_PLAIN * both.rel_l2_error_plain).sum()), len(both))


def _grouped(frame: pd.DataFrame, every_engine: bool = True) -> list[tuple[str, str, str, pd.DataFrame]]:
    """(provider, name, precision, rows) in display order. The knob choices of an engine are one algorithm."""
    names = [_merged_name(*pair, every_engine) for pair in algorithms(frame)]
    keyed = grouped(frame.assign(name=names), ["provider", "name", "precision"])
    groups = [(provider, name, precision, rows) for (provider, name, precision), rows in keyed]

    def order(group: tuple[str, str, str, pd.DataFrame]) -> tuple[tuple[int, int], int, str, str]:
        provider, name, precision, _ = group
        number = re.match(r"eng(\d+)$", name)
        return display_order(provider, name)[:2], int(number[1]) if number else -1, name, precision

    return sorted(groups, key=order)


def _merged_name(provider: str, algorithm: str, every_engine: bool = True) -> str:
    engine = re.match(r"eng\d+", algorithm) if provider == "cudnn_engine" else None
    if not engine:
        return algorithm
    return engine[0] if every_engine else "(all)"


def _wins(best: pd.DataFrame) -> Counter[tuple[str, str]]:
    return Counter((provider, _merged_name(provider, name)) for provider, name in algorithms(best))


def _statuses(group: pd.DataFrame, cases: int) -> tuple[int, str]:
    """The number of cases that it ran, and why it did not run the others. Of several rows of a case the best counts."""
    best = group.assign(rank=group.status.map(SEVERITY.index)).groupby(CASE)["rank"].min()
    counts = Counter(SEVERITY[rank] for rank in best)
    parts = [f"{status} {counts[status]}" for status in SEVERITY[1:] if counts[status]]
    if len(best) < cases:
        parts.append(f"not offered {cases - len(best)}")
    return counts["ok"], ", ".join(parts) or NONE
