"""The headline tables: batch sizes x filter sizes, how much faster and how many cases won."""

from __future__ import annotations

import pandas as pd

from harness import roster
from harness.analysis import compare, compare_with_tf32, summarise
from harness.markdown import NONE, markdown, times


def headlines(frame: pd.DataFrame, device: str) -> str:
    """Each subject against its rivals, both in FP32, and the first one against rivals with TF32 allowed too."""
    who = roster.comparison(device)
    parts = [
        _headline(f"{roster.shown(who.provider, subject)} against {who.rivals_label}", rows)
        for subject, rows in compare(frame, device).groupby("subject", sort=False)
    ]
    return "\n\n".join([*parts, *filter(None, [with_tf32(frame, device)])])


def with_tf32(frame: pd.DataFrame, device: str) -> str:
    """The first subject, in FP32, against rivals that may round to TF32; empty where none was measured.

    Of each case the fastest rival of both classes counts.
    """
    who, table = roster.comparison(device), compare_with_tf32(frame, device)
    rows = table[table.subject == who.subjects[0]]
    if rows.empty:
        return ""
    name = roster.shown(who.provider, who.subjects[0])
    return _headline(f"{name} in FP32 against {who.rivals_label} with TF32 allowed", rows)


def _headline(title: str, rows: pd.DataFrame) -> str:
    return f"**{title}**: geometric mean of the speedup, cases won/all cases.\n\n{headline_table(rows)}"


def headline_table(rows: pd.DataFrame) -> str:
    """Batch sizes x filter sizes of one subject's rows of `compare`: geometric mean, and cases won of cases."""
    filters = sorted(rows.k.unique())

    def cell(members: pd.DataFrame) -> str:
        s = summarise(members)
        return f"{times(s.geometric)}, {s.wins}/{s.of}" if s.of else NONE

    batches = [(str(batch), members) for batch, members in rows.groupby("batch")] + [("all", rows)]
    body = [[batch, *(cell(m[m.k == k]) for k in filters), cell(m)] for batch, m in batches]
    return markdown(["batch", *(f"{k}x{k}" for k in filters), "all"], body)
