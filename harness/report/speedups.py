"""Tables of speedups: by batch and filter size, with TF32 allowed, and the worst cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from harness.contenders import registry
from harness.contenders.registry import Role
from harness.precision import FP32, PRECISIONS, TF32
from harness.store.markdown import NONE, Column, markdown, of, tabulate, times
from harness.sweep.comparisons import (
    CASE,
    FILTER,
    Results,
    Summary,
    compare_with_tf32,
    each,
    fastest,
    geometric_mean,
    grouped,
    problem_of,
    rivals,
    summarise,
    timed,
)
from harness.sweep.provenance import provenance

ALL = "all"  # the label of the rows of every batch size
WORST = 3  # cases in the table of the smallest speedups


def by_batch(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each batch size, and at last all rows where there are several: (label, rows)."""
    groups = [(str(batch), members) for batch, members in grouped(rows, "batch")]
    return [*groups, (ALL, rows)] if len(groups) > 1 else groups


def by_filter(rows: pd.DataFrame, cell: Callable[[pd.DataFrame], object]) -> list[Column]:
    """A column for each filter size of some rows, and one of all if there are several; a cell for a group's rows."""

    def of_size(k: int, kw: int) -> Column:
        return f"{k}x{kw}", lambda group: cell(group[(group.k == k) & (group.kw == kw)])

    sizes = [of_size(*size) for size, _ in grouped(rows, FILTER)]
    return [*sizes, (ALL, cell)] if len(sizes) > 1 else sizes


def maximum(summary: Summary) -> str:
    """The largest speedup, and the case that has it."""
    return f"{times(summary.maximum)} ({summary.at})" if summary.at else NONE


def summary_table(results: Results) -> str:
    """The speedups of each subject: one paragraph, and a table by filter size and batch size.

    A case on which no rival has a time is left out, and the paragraph says so.
    """
    if results.compared.empty:
        return "Nothing of cuConv was measured here, so there is nothing to compare."
    subjects = grouped(results.compared, "subject")
    return "\n\n".join(_subject_summary(results, subject, rows) for subject, rows in subjects)


def _subject_summary(results: Results, subject: str, rows: pd.DataFrame) -> str:
    name, total = results.shown(subject), summarise(rows)
    if not total.of:
        return f"{name}: no case has a rival's time to compare with."
    lines = [
        f"{name} against {results.comparison.rivals_label} on {results.device}: "
        f"faster on {total.wins} of {total.of} cases ({total.wins / total.of:.2%}).",
        f"Speedup: geometric mean {times(total.geometric)}, maximum {maximum(total)}.",
    ]
    compared = rows[rows.rival_us.notna()]
    if failed := int(compared.mean_us.isna().sum()):
        lines.append(f"It has no FP32 time for {failed} of them: not won, and not in the means.")
    if len(compared) < len(rows):
        lines.append(f"Left out, as no rival has a time: {len(rows) - len(compared)}.")
    lines += against_others(rows, results.comparison.provider)
    return "\n".join(lines) + "\n\n" + _by_filter_and_batch(rows)


def against_others(rows: pd.DataFrame, provider: str) -> list[str]:
    """One sentence on the speedup of one subject's rows of `compare` over each provider compared apart from the rivals.

    provider: the subject's own. A provider that has no time has no sentence.
    """
    sentences = []
    for name in registry.BESIDE:
        if name == provider:
            continue
        other = summarise(rows.assign(rival_us=rows[f"{name}_us"], speedup=rows[f"{name}_speedup"]))
        if other.of:
            beside, mean = registry.PROVIDERS[name], times(other.geometric)
            against = f"Against {beside.label}, {beside.particular}"
            sentences.append(f"{against}: faster on {other.wins} of {other.of}, geometric mean {mean}.")
    return sentences


def _by_filter_and_batch(rows: pd.DataFrame) -> str:
    body = []
    for (k, kw), same_filter in grouped(rows, FILTER):
        for batch, members in by_batch(same_filter):
            s = summarise(members)
            means = (times(s.geometric), times(s.arithmetic))
            body.append([f"{k}x{kw}", batch, of(s.wins, s.of), *means, maximum(s)])
    return markdown(["filter", "batch", "won", "geometric mean", "arithmetic mean", "maximum"], body)


def grid_table(rows: pd.DataFrame, more: Sequence[Column] = ()) -> str:
    """Batch sizes x filter sizes of one subject's rows of `compare`: geometric mean, and cases won of all.

    more: columns that follow.
    """
    groups = [*((str(batch), members) for batch, members in grouped(rows, "batch")), (ALL, rows)]
    return tabulate("batch", groups, [*by_filter(rows, mean_and_wins), *more])


def mean_and_wins(rows: pd.DataFrame) -> str:
    """Geometric mean of the speedups of rows of `compare`, and cases won/all cases: "2.24x, 602/602"."""
    s = summarise(rows)
    return f"{times(s.geometric)}, {s.wins}/{s.of}" if s.of else NONE


def headline_table(results: Results) -> str:
    """A line for each batch size: geometric mean of the speedups and cases won, for each subject.

    Where the sweep has separated and cold times, it is the first subject alone, in each time.
    """
    if len(results.every_time) > 1:
        return _headline_of_times(results.every_time)
    subjects = [(results.shown(name), rows) for name, rows in grouped(results.compared, "subject")]
    body = []
    for batch, members in by_batch(results.of_subject()):
        cells: list[str] = []
        for _, rows in subjects:
            s = summarise(rows[rows.batch.isin(members.batch)])
            cells += [times(s.geometric), of(s.wins, s.of)]
        body.append([batch, *cells])
    return markdown(["batch", *(cell for name, _ in subjects for cell in (name, "won"))], body)


def _headline_of_times(every_time: Sequence[Results]) -> str:
    """Geometric mean of the first subject's speedups, and cases won/all cases, with a column for each time."""
    hot = every_time[0]
    columns = [(one, one.of_subject()) for one in every_time]
    body = []
    for batch, members in by_batch(hot.of_subject()):
        body.append([batch, *(mean_and_wins(rows[rows.batch.isin(members.batch)]) for _, rows in columns)])
    return markdown(["batch", *(f"{hot.shown(hot.subject)}, {one.time}" for one, _ in columns)], body)


def with_tf32(results: Results) -> str:
    """The first subject, in FP32 and in TF32, against rivals that may round to TF32. Empty where none was measured.

    The fastest rival of either precision counts. Last sentences say what channels last brings to the rivals, and which
    cases and rivals have rows in FP32 alone.
    """
    tables = {ours: compare_with_tf32(results, ours) for ours in PRECISIONS}
    what = "geometric mean of the speedup, cases won/all cases."
    parts = [
        f"**{title_with_tf32(results, ours)}**{tf32_layouts(results)}: {what}\n\n{grid_table(rows)}"
        for ours, rows in tables.items()
        if len(rows)
    ]
    most = max(tables.values(), key=len)
    sentences = [*_channels_last(results), *_cases_without(most, results), *_in_fp32_alone(results.frame)]
    return "\n\n".join(parts + sentences if parts else [])


def tf32_sentence(results: Results) -> str:
    """The first subject in FP32 against rivals that may round to TF32, over all and on its worst filter size.

    Empty where no rival has a time with TF32 allowed.
    """
    rows = compare_with_tf32(results, FP32)
    if rows.empty:
        return ""
    sizes = {f"{k}x{kw}": summarise(members) for (k, kw), members in grouped(rows, FILTER)}
    worst = min(sizes, key=lambda size: sizes[size].geometric)
    every = summarise(rows)
    return (
        f"With TF32 allowed for the rivals{tf32_layouts(results)}, {results.shown(results.subject)} in FP32 wins "
        f"{of(every.wins, every.of)} cases, geometric mean {times(every.geometric)}; with {worst} filters "
        f"{of(sizes[worst].wins, sizes[worst].of)}, {times(sizes[worst].geometric)} "
        f"({provenance(results, timed(results.frame, TF32))})."
    )


def tf32_layouts(results: Results) -> str:
    """The limit on the rivals' layouts in rows of precision TF32; empty where every case has channels last, too."""
    rows = rivals(results.frame[results.frame.precision == TF32], results.comparison)
    last = rows[rows.algorithm.str.endswith(registry.NHWC)]
    both = len(last.drop_duplicates(CASE)) == len(rows.drop_duplicates(CASE))
    return "" if both else ", on NCHW tensors only"


def _channels_last(results: Results) -> list[str]:
    """Two sentences, or none, on the fastest rival of each layout in rows of precision TF32."""
    rows = rivals(timed(results.frame, TF32), results.comparison)
    is_last = rows.algorithm.str.endswith(registry.NHWC)
    both = fastest(rows[is_last]).merge(fastest(rows[~is_last])[[*CASE, "mean_us"]], on=CASE, suffixes=("", "_nchw"))
    if both.empty:
        return []
    gains = both.mean_us_nchw / both.mean_us
    won = of(sum(gains > 1), len(both))
    frame = results.frame
    on_nchw = replace(results, frame=frame[~frame.algorithm.str.endswith(registry.NHWC)])
    cells = [f"{ours.upper()} has {mean_and_wins(compare_with_tf32(on_nchw, ours))}" for ours in PRECISIONS]
    return [
        f"In TF32 the fastest rival gains {times(geometric_mean(gains))} from channels last, faster on {won} cases; no "
        f"conversion is timed. Over rivals on NCHW tensors alone, {results.shown(results.subject)} in "
        f"{' and in '.join(cells)}."
    ]


def _cases_without(compared: pd.DataFrame, results: Results) -> list[str]:
    """One sentence, or none, on the cases that no rival was measured on with TF32 allowed."""
    missing = len(results.of_subject()) - len(compared)
    return [f"Not measured with TF32 allowed: {of(missing, len(results.of_subject()))} cases."] if missing else []


def _in_fp32_alone(frame: pd.DataFrame) -> list[str]:
    """One sentence, or none, on the rivals that were measured in FP32 and not with TF32 allowed."""
    measured = {precision: set(frame[frame.precision == precision].provider) for precision in PRECISIONS}
    others = [one for one in registry.PROVIDERS.values() if one.role in (Role.RIVAL, Role.BESIDE) and not one.optional]
    missing = [one for one in others if one.name in measured[FP32] - measured[TF32]]
    labels = " and ".join(one.label for one in missing)
    return [f"Not measured with TF32 allowed: {labels}."] if missing else []


def title_with_tf32(results: Results, ours: str) -> str:
    """The title of a comparison of the first subject, in a precision, with rivals that may round to TF32."""
    subject = f"{results.shown(results.subject)} in {ours.upper()}"
    return f"{subject} against {results.comparison.rivals_label} with TF32 allowed"


def worst_table(results: Results, rows: pd.DataFrame, most: int = WORST) -> str:
    """The cases of the smallest speedups, at most so many, with both times in microseconds.

    rows: those of `compare` of the first subject.
    """
    columns: list[Column] = [
        (f"{results.shown(results.subject)}, us", lambda case: f"{case.mean_us:.2f}"),
        ("best cuDNN, us", lambda case: f"{case.rival_us:.2f}"),
        ("which is", lambda case: registry.shown(case.rival_provider, case.rival_algorithm)),
        ("speedup", lambda case: times(case.speedup)),
    ]
    return tabulate("HW-N-K-M-C", labelled(rows.nsmallest(most, "speedup")), columns, left=(0, 3))


def smallest_sentence(results: Results) -> str:
    """One sentence on the smallest speedup of the first subject: the case, the rival and both times in microseconds.

    Empty where no case has both times.
    """
    rows = results.of_subject().dropna(subset="speedup")
    if rows.empty:
        return ""
    (case,) = each(rows.nsmallest(1, "speedup"))
    rival = registry.shown(case.rival_provider, case.rival_algorithm)
    return (
        f"The smallest speedup is {times(case.speedup)}, on {problem_of(case).label}: {case.mean_us:.2f} us, "
        f"compared with {case.rival_us:.2f} us by {rival}."
    )


def first_ratio(cases: pd.DataFrame, column: str) -> str:
    """The ratio in a column of the first case, and its label; a dash where there is no case."""
    for label, case in labelled(cases.head(1)):
        return f"{times(getattr(case, column))} ({label})"
    return NONE


def labelled(cases: pd.DataFrame) -> list[tuple[str, Any]]:
    """The cases in order, each with its label."""
    return [(problem_of(case).label, case) for case in each(cases)]
