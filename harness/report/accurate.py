"""cuConv compared with the fastest cuDNN of FP32 accuracy.

Rivals are held to the rule for cuConv's own algorithms (docs/accuracy.md), by the error of a row and not of each image.
All of them are allowed what the rule allows Winograd with 3x3 filters.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from harness.store.markdown import of, times
from harness.sweep.comparisons import CASE, TIMES_PLAIN, Results, fastest, full_precision, rivals, summarise

PLAIN, WINOGRAD = "implicit_gemm", "winograd_nonfused"  # cuDNN's algorithms that the rule is measured by


def is_fp32_accurate(rows: pd.DataFrame) -> pd.Series:
    """Whether each row's relative L2 error is that of FP32; True on cases where implicit_gemm was not measured.

    The error may be twice that of cuDNN's implicit_gemm on the same data, and with 3x3 filters as large as that of
    winograd_nonfused. Rows of cuDNN in FP32 must be among them.
    """
    classic = rows[rows.provider == "cudnn"]
    allowed = [
        classic[(classic.algorithm == name) & of_size][[*CASE, "rel_l2_error"]].rename(columns={"rel_l2_error": name})
        for name, of_size in ((PLAIN, True), (WINOGRAD, (classic.k == 3) & (classic.kw == 3)))
    ]
    limits = rows[CASE].merge(allowed[0], on=CASE, how="left").merge(allowed[1], on=CASE, how="left")
    largest = pd.Series(np.asarray(np.fmax(TIMES_PLAIN * limits[PLAIN], limits[WINOGRAD])), rows.index)
    return rows.rel_l2_error <= largest.where(limits[PLAIN].notna().to_numpy(), np.inf)


def accuracy_sentence(results: Results) -> str:
    """On how many cases the fastest rival is less accurate than FP32, and the speedup over the fastest that is not.

    Empty where cuDNN's implicit_gemm was not measured.
    """
    rows = full_precision(results.frame)
    if rows[(rows.provider == "cudnn") & (rows.algorithm == PLAIN)].empty:
        return ""
    theirs = rivals(rows, results.comparison)
    accurate = is_fp32_accurate(theirs)
    best = fastest(theirs.assign(accurate=accurate))
    exact = replace(results, frame=results.frame.drop(index=theirs.index[~accurate]))
    total = summarise(exact.of_subject())
    return (
        f"On {of(int((~best.accurate).sum()), len(best))} cases, the fastest algorithm of cuDNN has a larger error "
        f"than FP32 allows. Without such algorithms {results.shown(results.subject)} wins "
        f"{of(total.wins, total.of)} cases, geometric mean {times(total.geometric)}."
    )
