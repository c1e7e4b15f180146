"""The memory-bound layers, and the depthwise ones, compared with copies of as many bytes, timed in the same way."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.experiments.copies import rows as bandwidth
from harness.report.floor import percent
from harness.store.markdown import NONE, markdown, of
from harness.sweep.comparisons import (
    FILTER,
    LAYER,
    Results,
    each,
    geometric_mean,
    grouped,
    is_memory_bound,
    problem_of,
)

LEAST_BATCH = 16  # in smaller batches a launch counts for more than bytes
GOAL = 0.8  # as a share of a copy's bandwidth
LEAST_BYTES, DEPTHWISE_GOAL = 8e6, 0.7  # for depthwise layers


def memory_bound(results: Results) -> pd.DataFrame:
    """The memory-bound rows of `compare` of the first subject, from batch LEAST_BATCH on."""
    table = results.of_subject()
    table = table[table.batch >= LEAST_BATCH]
    bound = [is_memory_bound(problem_of(case)) for case in each(table)]
    return table[np.array(bound, dtype=bool)]  # an empty list would select no columns


def shares(cases: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    """Rows of `compare` with copy_us, the time of a copy of as many bytes, and share = copy_us / mean_us.

    The bytes of a case are its input, weights and output, each once. copy_us is NaN outside the sizes of the copies,
    and share also where the subject has no time.
    """
    copy_us = bandwidth.copy_us(copies, [problem_of(case).min_bytes for case in each(cases)])
    return cases.assign(copy_us=copy_us, share=copy_us / cases.mean_us)


def memory_bound_table(results: Results) -> str:
    """Filters and planes x batch sizes: geometric mean of a copy's time over that of the first subject.

    The last line counts the cases that reach GOAL.

    Copies come from the device's bandwidth.csv; without one, a sentence says what to run. Empty where no case is
    memory-bound. Raises ResultsError where the file is something else.
    """
    cases = memory_bound(results)
    if cases.empty:
        return ""
    copies = bandwidth.find(results.folder.parent)
    if copies is None:
        return bandwidth.BANDWIDTH.missing(results.device)
    found = shares(cases, copies)
    note = (
        f"Time of a copy of as many bytes over time of {results.shown(results.subject)}: "
        f"{GOAL:.0%} or more on {_reached(found)} cases. Geometric means over the layers of a plane:"
    )
    batches = sorted(found.batch.unique())
    body = []
    for (k, kw, h, w), rows in grouped(found, [*FILTER, "h", "w"]):
        layers = len(rows.drop_duplicates(LAYER))
        cells = [percent(geometric_mean(rows[rows.batch == batch].share)) for batch in batches]
        body.append([f"{k}x{kw}", f"{h}x{w}", layers, *cells])
    reached = [_reached(found[found.batch == batch]) for batch in batches]
    body.append([f"{GOAL:.0%} or more", "all", len(found.drop_duplicates([*FILTER, *LAYER])), *reached])
    return f"{note}\n\n" + markdown(["filter", "plane", "layers", *map(str, batches)], body, left=(0, 1))


def depthwise_table(results: Results | None, device: str) -> str:
    """The depthwise layers that move LEAST_BYTES or more, by filter size and input: the share of a copy's speed.

    results: those of a sweep with groups, None where it was not measured on the device.
    """
    copies = bandwidth.find(results.folder.parent) if results else None
    if results is None or copies is None:
        return f"Layers with groups, or copies, were not measured on {device}."
    cases = results.of_subject()
    moved = np.array([problem_of(case).min_bytes for case in each(cases)])
    cases = cases[(cases.groups == cases.c) & (cases.m == cases.c) & (moved >= LEAST_BYTES)]
    found = shares(cases, copies)
    note = (
        f"Time of a copy of as many bytes over time of {results.shown(results.subject)}, depthwise layers that move "
        f"{LEAST_BYTES / 1e6:g} MB or more: {DEPTHWISE_GOAL:.0%} or more on "
        f"{of(int((found.share >= DEPTHWISE_GOAL).sum()), len(found))} cases. Geometric means, and the number of cases:"
    )
    planes = sorted(found.h.unique(), reverse=True)
    body = []
    for (k, kw, stride), rows in grouped(found, [*FILTER, "stride"]):
        cells = [_mean_share(rows[rows.h == h]) for h in planes]
        body.append([f"{k}x{kw}" + (f", stride {stride}" if stride > 1 else ""), *cells, _mean_share(rows)])
    return f"{note}\n\n" + markdown(["filter", *(f"{h}x{h}" for h in planes), "all"], body)


def _mean_share(rows: pd.DataFrame) -> str:
    return f"{geometric_mean(rows.share):.0%} ({len(rows)})" if len(rows) else NONE


def _reached(found: pd.DataFrame) -> str:
    return of(int((found.share >= GOAL).sum()), int(found.copy_us.notna().sum()))
