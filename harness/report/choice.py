"""The choices of auto and batch_invariant: auto compared with the best of cuConv's own algorithms, and without each of
them; what batch_invariant costs.

Every algorithm has rows by name in addition to those of auto, so the choice can be judged from measurements.csv alone.
The row of auto says in its detail which algorithm it chose.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pandas as pd

from harness.contenders import registry
from harness.precision import FP32, PRECISIONS, TF32
from harness.report.speedups import by_batch, by_filter, first_ratio
from harness.store.markdown import NONE, Column, markdown, of, tabulate, times
from harness.sweep.comparisons import (
    AUTO,
    BATCH_INVARIANT,
    CASE,
    FILTER,
    Results,
    fastest,
    geometric_mean,
    rivals,
    timed,
)
from harness.sweep.provenance import mixture

CUCONV = "cuconv"


def algorithm_names() -> tuple[str, ...]:
    """The names of the library's algorithms, in order of display, without the choices among them."""
    return tuple(name for name in registry.PROVIDERS[CUCONV].algorithms if name not in registry.CHOICES)


def choice(results: Results, precision: str = FP32) -> pd.DataFrame:
    """auto and the best of the library's algorithms: one row per case where both have a time.

    Columns: the case; mean_us of auto and `chosen`, the algorithm that it took; best_us and best_algorithm; behind =
    mean_us / best_us. Both were timed apart, so auto may be slightly faster than the very algorithm that it chose:
    behind is then below 1.
    """
    ours = _ours(results, precision)
    best = fastest(ours[ours.algorithm.isin(algorithm_names())])[[*CASE, "algorithm", "mean_us"]]
    best = best.rename(columns={"algorithm": "best_algorithm", "mean_us": "best_us"})
    table = _autos(results, precision).merge(best, on=CASE)
    return table.assign(behind=table.mean_us / table.best_us)


def _ours(results: Results, *precisions: str) -> pd.DataFrame:
    """The timed rows of the library."""
    rows = timed(results.frame, *precisions)
    return rows[rows.provider == CUCONV]


def _autos(results: Results, precision: str) -> pd.DataFrame:
    """The rows of auto: the case, mean_us, and `chosen`, the algorithm that it took."""
    ours = _ours(results, precision)
    autos = ours[ours.algorithm == AUTO]
    return autos.assign(chosen=autos.detail.str.split().str[0])[[*CASE, "mean_us", "chosen"]]


def choice_table(results: Results) -> str:
    """The time of auto over that of the best of cuConv's own algorithms, by batch size and precision.

    Empty without both. Last sentences warn where they are not of one measurement.
    """
    tables = {precision: choice(results, precision) for precision in PRECISIONS}
    tables = {precision: table.assign(precision=precision) for precision, table in tables.items() if len(table)}
    if not tables:
        return ""
    columns: list[Column] = []
    for precision in tables:
        columns.append((f"{precision.upper()}, mean", partial(_mean_behind, precision=precision)))
        columns.append((f"{precision.upper()}, worst", partial(_furthest_behind, precision=precision)))
    table = tabulate("batch", by_batch(pd.concat(tables.values())), columns)
    warnings = {precision.upper(): warned("", results, precision) for precision in tables}
    told = [f"In {name}: {warning}" if len(tables) > 1 else warning for name, warning in warnings.items() if warning]
    return "\n\n".join([table, *told])


def _mean_behind(rows: pd.DataFrame, precision: str) -> str:
    return times(geometric_mean(rows[rows.precision == precision].behind), 3)


def _furthest_behind(rows: pd.DataFrame, precision: str) -> str:
    return first_ratio(rows[rows.precision == precision].nlargest(1, "behind"), "behind")


def warned(table: str, results: Results, *precisions: str) -> str:
    """A table, and a sentence for each of these precisions in which the library's rows are of several codes.

    In TF32 auto may take algorithms of either precision, so rows of both count.
    """
    warnings = {}
    for precision in precisions:
        rows = _ours(results, *(precisions if precision == TF32 else (precision,)))
        warnings[precision] = mixture(results, rows[rows.algorithm.isin([AUTO, *algorithm_names()])])
    if len(set(warnings.values())) == 1:
        told = [*warnings.values()][:1]
    else:
        told = [f"In {precision.upper()}: {warning}" for precision, warning in warnings.items() if warning]
    return "\n\n".join(part for part in (table, *told) if part)


def without(results: Results, name: str, precision: str = FP32) -> pd.DataFrame:
    """The cases of auto as they would be without one algorithm: one row per case, in a precision.

    Columns: the case, mean_us of auto, `chosen`, other_us of the fastest other algorithm, and loss. Where auto chose
    the algorithm, loss is other_us / mean_us; elsewhere it is 1, because auto keeps its choice. A case on which auto
    chose it and no other algorithm has a time has no loss (NaN).

    The others are in FP32; in TF32 they are of both precisions, for auto may take any of these where TF32 is allowed.

    What it cannot tell: auto without the algorithm would choose by prediction, and may miss the fastest of the others,
    so other_us is optimistic. The rows were timed apart, so a loss of less than about 1% is noise, and may be below 1.
    """
    allowed = _ours(results, *(PRECISIONS if precision == TF32 else (FP32,)))
    others = fastest(allowed[allowed.algorithm.isin(set(algorithm_names()) - {name})])
    others = others[[*CASE, "mean_us"]].rename(columns={"mean_us": "other_us"})
    table = _autos(results, precision).merge(others, on=CASE, how="left")
    return table.assign(loss=(table.other_us / table.mean_us).where(table.chosen == name, 1.0))


def losses_table(results: Results) -> str:
    """Tabulate the loss of auto without each algorithm, in each precision. `without` says how far that can be trusted.

    The number of cases on which auto chooses it, the geometric mean of the loss over all cases, and the worst case.
    A last sentence warns where the rows are not of one measurement. Empty where auto was not measured.
    """
    body = []
    for name in algorithm_names():
        for precision in PRECISIONS:
            table = without(results, name, precision)
            if _is_possible(results, name, precision, table):
                body.append([name, precision, *_loss_cells(table, name)])
    if not body:
        return ""
    header = ["without", "precision", "chosen", "geometric mean", "worst"]
    return warned(markdown(header, body, left=(0, 1)), results, *PRECISIONS)


def _is_possible(results: Results, name: str, precision: str, table: pd.DataFrame) -> bool:
    """Whether auto was measured in a precision, and the algorithm computes in it or was chosen."""
    return bool(len(table) and ((_ours(results, precision).algorithm == name).any() or (table.chosen == name).any()))


def _loss_cells(table: pd.DataFrame, name: str) -> list[str]:
    """Cases chosen, geometric mean of the loss over all cases, and its worst."""
    chosen = of(int((table.chosen == name).sum()), len(table))
    lost = table[(table.chosen == name) & table.loss.notna()]
    return [chosen, times(geometric_mean(table.loss), 4), first_ratio(lost.nlargest(1, "loss"), "loss")]


def algorithm_table(results: Results, name: str) -> str:
    """When auto takes one algorithm, and what it gains there: a column for each precision that it computes in.

    Its gain is the time of auto over that of the next best algorithm, by name, on the cases that auto gives it.
    """
    columns = {precision: without(results, name, precision) for precision in PRECISIONS}
    facts = {p: _facts(table, name) for p, table in columns.items() if _is_possible(results, name, p, table)}
    if not facts:
        return f"auto and {name} were not measured on {results.device}."
    if not any((columns[precision].chosen == name).any() for precision in facts):
        precisions = " and ".join(precision.upper() for precision in facts)
        return f"auto takes {name} on none of the {len(columns[FP32])} cases, in {precisions}."
    labels = list(next(iter(facts.values())))
    rows = [[label, *(column[label] for column in facts.values())] for label in labels]
    return warned(markdown(["", *(precision.upper() for precision in facts)], rows), results, *facts)


def _facts(table: pd.DataFrame, name: str) -> dict[str, str]:
    mine = table[table.chosen == name]
    chosen, mean, worst = _loss_cells(table, name)
    return {
        "auto takes it on": f"{chosen} cases",
        "filter sizes": _counts(mine[FILTER]),
        "batch sizes": _counts(mine[["batch"]]),
        "its time over that of the next best there, median": times((1 / mine.loss).median()),
        "time of auto without it, geometric mean of all cases": mean,
        "time of auto without it, worst case": worst,
    }


def _counts(sizes: pd.DataFrame) -> str:
    """Each size with the number of its cases: "3x3 (128), 5x5 (31)"."""
    counts = sorted(Counter(sizes.itertuples(index=False, name=None)).items())
    return ", ".join(f"{'x'.join(map(str, size))} ({count})" for size, count in counts) or NONE


def invariance_table(results: Results) -> str:
    """The time of batch_invariant over that of auto by filter and batch size, and its speedup over the best rival.

    All in FP32, as geometric means over the cases where each of the three has a time. Without batch_invariant a
    sentence says so.
    """
    ours = _ours(results, FP32)
    theirs = fastest(rivals(timed(results.frame, FP32), results.comparison))
    table = ours[ours.algorithm == BATCH_INVARIANT][[*CASE, "mean_us"]]
    for name, rows in (("auto_us", ours[ours.algorithm == AUTO]), ("rival_us", theirs)):
        table = table.merge(rows[[*CASE, "mean_us"]].rename(columns={"mean_us": name}), on=CASE)
    if table.empty:
        return f"batch_invariant was not measured on {results.device}."
    table = table.assign(cost=table.mean_us / table.auto_us, speedup=table.rival_us / table.mean_us)
    columns: list[Column] = [
        *by_filter(table, lambda rows: times(geometric_mean(rows.cost))),
        (f"over {results.comparison.rivals_label}", lambda rows: times(geometric_mean(rows.speedup))),
        ("won", lambda rows: of(int((rows.speedup > 1).sum()), len(rows))),
    ]
    return tabulate("batch", by_batch(table), columns)
