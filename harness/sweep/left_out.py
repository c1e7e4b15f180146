"""The cases whose fastest rival the sweep's limit of workspace leaves out, by its time or an estimate."""

from __future__ import annotations

import pandas as pd

from harness.precision import FP32
from harness.sweep.comparisons import CASE, Results, rivals
from harness.sweep.records import EXCEEDED

WHO = [*(column for column in CASE if column != "batch"), "provider", "algorithm"]


def left_out(results: Results) -> tuple[pd.Series, str]:
    """The mask of rows of `of_subject` that lack a rival which is, or may be, the fastest; the limit such as "1 GiB".

    A rival over the limit counts where its time is below that of the fastest rival within it. Without a time on the
    case, its time on the same layer at the largest smaller batch size counts, scaled by images. A rival that never ran
    on a layer does not count: nothing is known of it.
    """
    mine = results.of_subject()
    theirs = rivals(results.frame[results.frame.precision == FP32], results.comparison)
    over = theirs[theirs.status == EXCEEDED]
    ran = theirs[theirs.mean_us.notna()][[*WHO, "batch", "mean_us"]]  # within the limit or over it
    found = over[[*WHO, "batch"]].merge(ran, on=WHO, suffixes=("", "_ran"))
    found = found[found.batch_ran <= found.batch].sort_values("batch_ran")
    found = found.drop_duplicates([*WHO, "batch"], keep="last").merge(mine[[*CASE, "rival_us"]], on=CASE)
    found = found[found.mean_us * found.batch / found.batch_ran < found.rival_us]
    marked = pd.MultiIndex.from_frame(mine[CASE]).isin(pd.MultiIndex.from_frame(found[CASE]))
    limits = over.detail.str.extract(r"limit is (\d+)")[0].dropna().astype(float)
    return pd.Series(marked, mine.index), f"{limits.iloc[0] / 2**30:g} GiB" if len(limits) else "the limit"
