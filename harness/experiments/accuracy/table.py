"""The tables of errors where magnitudes are far from ordinary, from accuracy.csv alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from harness.contenders import registry
from harness.experiments.accuracy.rows import ACCURACY
from harness.store.markdown import NONE, markdown, of, units
from harness.sweep.comparisons import TIMES_PLAIN, Results
from harness.sweep.records import CASE_COLUMNS

SHOWN = ("cuconv", "cudnn")  # providers
PLAIN = ("cudnn", "implicit_gemm")  # a plain FP32 sum: cuConv may have twice its error
ORDINARY, SCALED = "ordinary", "scaled"  # normal data, and the other kinds of NORMWISE together
# The columns of componentwise errors; an algorithm that none names belongs to that of its provider in OTHERS.
GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "auto, batch_invariant": (("cuconv", "auto"), ("cuconv", "batch_invariant")),
    **{name: (("cuconv", name),) for name in ("fp16x3_winograd", "fp16x3_pointwise", "fp16x3")},
    "others of cuConv": (),
    "cuDNN GEMM": tuple(("cudnn", name) for name in ("implicit_gemm", "implicit_precomp_gemm", "gemm")),
    "cuDNN FFT, Winograd": (),
}
OTHERS = {"cuconv": "others of cuConv", "cudnn": "cuDNN FFT, Winograd"}
EITHER = {  # the kinds that change the weights, and those that change the input in the same way
    "weight element": "one element", "weight channel": "one channel", "weight exponents": "exponents",
    "subnormal weights": "subnormal",
}  # fmt: skip
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
    titled = f"The largest componentwise error c:\n\n{table}"
    return f"{magnitudes_table(frame)}\n\n{titled if table else again}"


def magnitudes_table(frame: pd.DataFrame) -> str:
    """cuConv's algorithms and PLAIN x the largest error, on ordinary data and on the other kinds of NORMWISE.

    frame: as `Table.read` returns it. An error is in units of 1e-7, or "bad" where an output is not finite. The last
    column counts the cases on which cuConv has more than twice the error of a plain FP32 sum, cuDNN's implicit_gemm, on
    the same data. It leaves out the cases where either error is not finite.
    """
    ran = frame[(frame.status == "ok") & frame.magnitudes.isin(NORMWISE)]
    same = [*CASE_COLUMNS, "magnitudes"]
    plain = ran[(ran.provider == PLAIN[0]) & (ran.algorithm == PLAIN[1])].set_index(same).rel_l2_error.rename("plain")
    body = []
    for provider, name, mine in _by_algorithm(ran.join(plain, on=same)):
        if provider != "cuconv" and (provider, name) != PLAIN:
            continue
        both = mine.dropna(subset=["rel_l2_error", "plain"])
        count = int((both.rel_l2_error > TIMES_PLAIN * both.plain).sum())
        over = of(count, len(both)) if provider == "cuconv" else NONE
        ordinary = mine.magnitudes == ORDINARY
        errors = [_worst(rows.rel_l2_error, units) for rows in (mine[ordinary], mine[~ordinary])]
        body.append([registry.shown(provider, name), *errors, over])
    header = ["algorithm", f"{ORDINARY}, 1e-7", f"{SCALED}, 1e-7", f"over {TIMES_PLAIN}x implicit_gemm"]
    return markdown(header, body)


def componentwise_table(frame: pd.DataFrame) -> str:
    """Kinds of data x GROUPS: the worst componentwise error over the cases that ran.

    SCALED is one line, and so are the kinds that change the input or the weights alike (EITHER).
    It is "bad" where an output is not finite, and "inf" where one is not 0 although all its products are. The result is
    empty for a file of an older version, which has no such errors.
    """
    ran = frame[frame.status == "ok"]
    if ran.componentwise_error.isna().all():
        return ""
    kinds = ran.magnitudes.where(~ran.magnitudes.isin(NORMWISE) | (ran.magnitudes == ORDINARY), SCALED).replace(EITHER)
    groups = [_group(*pair) for pair in zip(ran.provider, ran.algorithm, strict=True)]
    ran = ran.assign(kind=kinds, group=groups)
    columns = [group for group in GROUPS if group in groups]
    body = [
        [kind, *(_worst(ran[(ran.kind == kind) & (ran.group == group)].componentwise_error, _c) for group in columns)]
        for kind in dict.fromkeys(kinds)
    ]
    return markdown(["data", *columns], body)


def _group(provider: str, algorithm: str) -> str:
    """The column of the componentwise table that an algorithm belongs to."""
    named = (group for group, names in GROUPS.items() if (provider, algorithm) in names)
    return next(named, OTHERS[provider])


def _by_algorithm(ran: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(provider, algorithm, rows) of each algorithm that has rows, in order of display."""
    for provider in SHOWN:
        for name in registry.PROVIDERS[provider].algorithms:
            mine = ran[(ran.provider == provider) & (ran.algorithm == name)]
            if not mine.empty:
                yield provider, name, mine


def _worst(errors: pd.Series, shown: Callable[[float], str]) -> str:
    if errors.empty:
        return NONE
    return "bad" if errors.isna().any() else shown(errors.max())


def _c(error: float) -> str:
    """A componentwise error: "0.5", or "4e+06" from 1000 on."""
    return f"{error:.1f}" if error < 1000 else f"{error:.0e}"
