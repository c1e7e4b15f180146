"""The memory-bound layers beside copies of as many bytes, timed in the same way: how near they come to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from harness.measure import bandwidth
from harness import registry as roster
from harness.results.comparisons import compare, is_memory_bound, layer_label, problem_of
from harness.report.markdown import NONE, markdown

LEAST_BATCH = 16  # below, a launch counts for more than bytes
GOAL = 0.8  # of the bandwidth of a copy


def memory_bound(frame: pd.DataFrame, device: str) -> pd.DataFrame:
    """The rows of `compare` of the device's first subject that memory bounds, from LEAST_BATCH on."""
    table = compare(frame, device)
    table = table[(table.subject == roster.comparison(device).subjects[0]) & (table.batch >= LEAST_BATCH)]
    bound = [is_memory_bound(problem_of(case)) for case in table.itertuples()]
    return table[np.array(bound, dtype=bool)]  # an empty list would select no columns


def shares(cases: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    """Rows of `compare` with copy_us, of a copy of as many bytes, and share = copy_us / mean_us.

    The bytes of a case are its input, weights and output, each once. copy_us is NaN outside the sizes of the copies,
    share also where the subject has no time.
    """
    copy_us = bandwidth.copy_us(copies, [problem_of(case).min_bytes for case in cases.itertuples()])
    return cases.assign(copy_us=copy_us, share=copy_us / cases.mean_us)


def memory_bound_table(frame: pd.DataFrame, device: str, csv_path: Path) -> str:
    """Layers x batch sizes: the shares, and on how many cases GOAL is reached, of those with a copy's time.

    csv_path is the device's bandwidth.csv; without one a sentence says what to run. Empty where no case of the frame
    is memory-bound. Raises ResultsError where the file is something else.
    """
    cases = memory_bound(frame, device)
    if cases.empty:
        return ""
    if not csv_path.exists():
        return f"No copies were measured on {device}: run 'python -m harness.bandwidth' there."
    found = shares(cases, bandwidth.read(csv_path))
    who = roster.comparison(device)
    note = (
        f"Time of a copy of as many bytes over time of {roster.shown(who.provider, who.subjects[0])}: "
        f"{GOAL:.0%} or more on {_reached(found)} cases."
    )
    batches = sorted(found.batch.unique())
    body = []
    for _, layer in found.groupby(["k", "h", "w", "m", "c", "pad"]):
        first, share = layer.iloc[0], layer.set_index("batch").share
        body.append([f"{first.k}x{first.k}", layer_label(first), *(_percent(share.get(batch)) for batch in batches)])
    body.append(["all", f"{GOAL:.0%} or more", *(_reached(found[found.batch == batch]) for batch in batches)])
    return f"{note}\n\n" + markdown(["filter", "HW-M-C", *map(str, batches)], body, left=(0, 1))


def _percent(share: float | None) -> str:
    return NONE if share is None or np.isnan(share) else f"{share:.1%}"


def _reached(found: pd.DataFrame) -> str:
    return f"{int((found.share >= GOAL).sum())} of {int(found.copy_us.notna().sum())}"
