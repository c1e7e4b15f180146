"""The headline tables: batch sizes x filter sizes, how much faster and how many cases won."""

from __future__ import annotations

import pandas as pd

from harness import registry as roster
from harness.results.comparisons import compare, compare_with_tf32, summarise
from harness.report.markdown import NONE, markdown, times
from harness.precision import FP32, PRECISIONS, TF32


def headlines(frame: pd.DataFrame, device: str) -> str:
    """Each subject against its rivals, both in FP32, then the first one against rivals with TF32 allowed."""
    who = roster.comparison(device)
    parts = [
        _headline(f"{roster.shown(who.provider, subject)} against {who.rivals_label}", rows)
        for subject, rows in compare(frame, device).groupby("subject", sort=False)
    ]
    return "\n\n".join([*parts, *filter(None, [with_tf32(frame, device)])])


def with_tf32(frame: pd.DataFrame, device: str) -> str:
    """The first subject, in FP32 and in TF32, against rivals that may round to TF32; empty where none was measured.

    Of each case the fastest rival of both classes counts. Says which rivals have rows in FP32 alone.
    """
    tables = {ours: compare_with_tf32(frame, device, ours) for ours in PRECISIONS}
    parts = [_headline(title_with_tf32(device, ours), rows) for ours, rows in tables.items() if len(rows)]
    return "\n\n".join(parts + _in_fp32_alone(frame) if parts else [])


def _in_fp32_alone(frame: pd.DataFrame) -> list[str]:
    """One sentence, or none, on providers of rivals that were measured, but not with TF32 allowed."""
    measured = {precision: set(frame[frame.precision == precision].provider) for precision in PRECISIONS}
    missing = [name for name in roster.CUDNN_PROVIDERS if name in measured[FP32] - measured[TF32]]
    labels = " and ".join(roster.PROVIDERS[name].label for name in missing)
    return [f"Not measured with TF32 allowed: {labels}."] if missing else []


def title_with_tf32(device: str, ours: str) -> str:
    """What is compared where rivals may round to TF32."""
    who = roster.comparison(device)
    subject = roster.shown(who.provider, who.subjects[0])
    return f"{subject} in {ours.upper()} against {who.rivals_label} with TF32 allowed"


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
