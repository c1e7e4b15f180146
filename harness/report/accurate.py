"""cuConv compared with the fastest cuDNN of FP32 accuracy.

Rivals are held to the first requirement of docs/accuracy.md, by the error of a row and not of each image.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from harness.store.markdown import of, times
from harness.sweep.comparisons import CASE, TIMES_PLAIN, Results, fastest, full_precision, rivals, summarise

PLAIN = "implicit_gemm"  # cuDNN's algorithm that the rule is measured by


def is_fp32_accurate(rows: pd.DataFrame) -> pd.Series:
    """Whether each row's relative L2 error is that of FP32; True on cases where implicit_gemm was not measured.

    The limit is twice the error of cuDNN's implicit_gemm on the same case. rows: implicit_gemm's must be among them.
    """
    plain = rows[(rows.provider == "cudnn") & (rows.algorithm == PLAIN)].set_index(CASE).rel_l2_error.rename("plain")
    return rows.rel_l2_error <= (TIMES_PLAIN * rows.join(plain, on=CASE).plain).fillna(np.inf)


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
        f"On {of(int((~best.accurate).sum()), len(best))} cases, the fastest algorithm of cuDNN has more than "
        f"{TIMES_PLAIN}x the error of its {PLAIN}. Without such algorithms {results.shown(results.subject)} wins "
        f"{of(total.wins, total.of)} cases, geometric mean {times(total.geometric)}."
    )
