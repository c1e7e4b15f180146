"""cuConv compared with the fastest cuDNN of any workspace: what the sweep's limit leaves out of every other table."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from harness.contenders.registry import PROVIDERS, Role, shown
from harness.precision import FP32
from harness.report.speedups import WORST, by_batch, labelled
from harness.store.markdown import NONE, Column, of, tabulate, times
from harness.sweep.comparisons import CASE, Results, geometric_mean, rivals, summarise
from harness.sweep.records import EXCEEDED, OK

RIVALS = " ".join(name for name, provider in PROVIDERS.items() if provider.role is Role.RIVAL)
REMEDY = f"measure with 'python -m harness.run --provider {RIVALS}'"
GIB = 2**30


def over_the_limit(results: Results) -> pd.DataFrame:
    """The rows in FP32 of rivals that need more workspace than the limit, with and without a time."""
    frame = results.frame
    return rivals(frame[(frame.precision == FP32) & (frame.status == EXCEEDED)], results.comparison)


def compare_without_limit(results: Results) -> pd.DataFrame:
    """The rows of `of_subject`, compared with the fastest rival of any workspace.

    More columns: limited_speedup, the speedup over the fastest rival within the limit; rival_status and workspace_bytes
    of the fastest rival. They are NaN where no rival has a time.
    """
    frame, timed = results.frame, over_the_limit(results).dropna(subset="mean_us").index
    rows = replace(results, frame=frame.assign(status=frame.status.mask(frame.index.isin(timed), OK))).of_subject()
    limited = results.of_subject()[[*CASE, "speedup"]].rename(columns={"speedup": "limited_speedup"})
    names = {"provider": "rival_provider", "algorithm": "rival_algorithm", "status": "rival_status"}
    facts = frame[frame.precision == FP32][[*CASE, *names, "workspace_bytes"]].rename(columns=names)
    rows = rows.merge(facts, on=[*CASE, "rival_provider", "rival_algorithm"], how="left")
    return rows.merge(limited, on=CASE, how="left")


def unlimited_table(results: Results) -> str:
    """The speedups with and without the limit by batch size, and the worst cases without it.

    Where no rival over the limit has a time, the text is the command that measures them.
    """
    over = over_the_limit(results)
    timed = int(over.mean_us.notna().sum())
    if not timed:
        return f"No algorithm over the limit of workspace has a time on {results.device}: {REMEDY}."
    rows = compare_without_limit(results)
    subject, rivals_label = results.shown(results.subject), results.comparison.rivals_label
    return "\n\n".join([
        f"Speedup of {subject} over {rivals_label} in FP32, within the limit of workspace and of any workspace: "
        f"geometric means. {of(timed, len(over))} rows of cuDNN over the limit have a time.",
        _by_batch(rows),
        "The cases of the smallest speedups over cuDNN of any workspace:",
        _worst(rows, subject),
    ])  # fmt: skip


def _by_batch(rows: pd.DataFrame) -> str:
    columns: list[Column] = [
        ("within the limit", lambda cases: times(geometric_mean(cases.limited_speedup))),
        ("any workspace", lambda cases: times(summarise(cases).geometric)),
        ("won", lambda cases: of(summarise(cases).wins, summarise(cases).of)),
        (
            "fastest cuDNN is over the limit",
            lambda cases: of(int((cases.rival_status == EXCEEDED).sum()), summarise(cases).of),
        ),
    ]
    return tabulate("batch", by_batch(rows), columns)


def _worst(rows: pd.DataFrame, subject: str) -> str:
    columns: list[Column] = [
        (f"{subject}, us", lambda case: f"{case.mean_us:.2f}"),
        ("cuDNN, us", lambda case: f"{case.rival_us:.2f}"),
        ("which is", lambda case: shown(case.rival_provider, case.rival_algorithm)),
        ("workspace, GiB", lambda case: NONE if pd.isna(case.workspace_bytes) else f"{case.workspace_bytes / GIB:.2f}"),
        ("speedup", lambda case: times(case.speedup)),
    ]
    return tabulate("HW-N-K-M-C", labelled(rows.nsmallest(WORST, "speedup")), columns, left=(0, 3))
