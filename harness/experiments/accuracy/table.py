"""The tables of errors where magnitudes are far from ordinary, from accuracy.csv alone."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from harness.contenders import registry
from harness.experiments.accuracy.rows import ACCURACY
from harness.store.markdown import NONE, markdown, of
from harness.sweep.comparisons import TIMES_PLAIN, Results
from harness.sweep.records import CASE_COLUMNS

SHOWN = ("cuconv", "cudnn")  # providers
PLAIN = ("cudnn", "implicit_gemm")  # a plain FP32 sum: cuConv may have twice its error
# The kinds of data on which all outputs of a unit are about equally large, so that a norm tells their error.
NORMWISE = (
    *("ordinary", "input 1e30", "input 1e-30", "channels balanced", "channels of input", "channels of weights"),
    *("filters", "images"),
)


def magnitudes_of(results: Results) -> str:
    """The tables of the device's accuracy.csv, or a sentence that says how to measure one."""
    frame = ACCURACY.find(results.folder.parent)
    return ACCURACY.missing(results.device) if frame is None else tables_of(frame)


def tables_of(frame: pd.DataFrame) -> str:
    """The norm-wise errors, then the componentwise ones or a sentence that these are not measured.

    frame: as `Table.read` returns it.
    """
    again = "Componentwise errors are not measured: run 'python -m harness accuracy' again."
    table = componentwise_table(frame)
    titled = f"Componentwise error c, which is about 1 or less for a plain FP32 sum: worst.\n\n{table}"
    return f"{magnitudes_table(frame)}\n\n{titled if table else again}"


def magnitudes_table(frame: pd.DataFrame) -> str:
    """Algorithms x NORMWISE: median and worst error over the cases that ran, "bad" where an output is not finite.

    frame: as `Table.read` returns it. The last column counts the cases on which cuConv has more
    than twice the error of a plain FP32 sum, cuDNN's implicit_gemm, on the same data. It leaves out the cases where
    either error is not finite.
    """
    kinds = [kind for kind in dict.fromkeys(frame.magnitudes) if kind in NORMWISE]
    ran = frame[(frame.status == "ok") & frame.magnitudes.isin(kinds)]
    same = [*CASE_COLUMNS, "magnitudes"]
    plain = ran[(ran.provider == PLAIN[0]) & (ran.algorithm == PLAIN[1])].set_index(same).rel_l2_error.rename("plain")
    body = []
    for provider, name, mine in _by_algorithm(ran.join(plain, on=same)):
        both = mine.dropna(subset=["rel_l2_error", "plain"])
        count = int((both.rel_l2_error > TIMES_PLAIN * both.plain).sum())
        over = of(count, len(both)) if provider == "cuconv" else NONE
        errors = [_median_and_worst(mine[mine.magnitudes == kind].rel_l2_error) for kind in kinds]
        body.append([registry.shown(provider, name), *errors, over])
    return markdown(["algorithm", *kinds, f"over {TIMES_PLAIN}x implicit_gemm"], body)


def componentwise_table(frame: pd.DataFrame) -> str:
    """Algorithms x magnitudes: the worst componentwise error over the cases that ran, and over all kinds at the end.

    It is "bad" where an output is not finite, and "inf" where one is not 0 although all its products are. The result is
    empty for a file of an older version, which has no such errors.
    """
    ran = frame[frame.status == "ok"]
    if ran.componentwise_error.isna().all():
        return ""
    kinds, body = list(dict.fromkeys(frame.magnitudes)), []
    for provider, name, mine in _by_algorithm(ran):
        errors = [_worst(mine[mine.magnitudes == kind].componentwise_error) for kind in kinds]
        body.append([registry.shown(provider, name), *errors, _worst(mine.componentwise_error)])
    return markdown(["algorithm", *kinds, "all kinds"], body)


def _by_algorithm(ran: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(provider, algorithm, rows) of each algorithm that has rows, in order of display."""
    for provider in SHOWN:
        for name in registry.PROVIDERS[provider].algorithms:
            mine = ran[(ran.provider == provider) & (ran.algorithm == name)]
            if not mine.empty:
                yield provider, name, mine


def _worst(errors: pd.Series) -> str:
    if errors.empty:
        return NONE
    if errors.isna().any():
        return "bad"
    worst = errors.max()
    return f"{worst:.1f}" if worst < 1000 else f"{worst:.0e}"


def _median_and_worst(errors: pd.Series) -> str:
    if errors.empty:
        return NONE
    bad = int(errors.isna().sum())
    found = f"{errors.median():.1e}, {errors.max():.1e}" if bad < len(errors) else ""
    return ", ".join(part for part in (found, f"{bad} bad" if bad else "") if part)
