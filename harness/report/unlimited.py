"""cuConv compared with the fastest cuDNN of any workspace: what the sweep's limit leaves out of every other table."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from harness.contenders.registry import PROVIDERS, Role
from harness.precision import FP32
from harness.store.markdown import of, times
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


def unlimited_sentences(results: Results) -> str:
    """The effect of the workspace limit: cases where a rival over it is the fastest, and the speedup over any rival.

    Where no rival over the limit has a time, the text is the command that measures them.
    """
    over = over_the_limit(results)
    timed = int(over.mean_us.notna().sum())
    if not timed:
        return f"No algorithm over the limit of workspace has a time on {results.device}: {REMEDY}."
    rows = compare_without_limit(results)
    total, beyond = summarise(rows), rows[rows.rival_status == EXCEEDED]
    sentences = [f"On {of(len(beyond), total.of)} cases the fastest cuDNN is over the limit."]
    if len(beyond):
        most = beyond.workspace_bytes.max() / GIB
        sentences[0] = f"{sentences[0][:-1]}, from batch {beyond.batch.min()} on, with up to {most:.1f} GiB."
    if timed < len(over):
        sentences.append(f"Only {of(timed, len(over))} rows of cuDNN over the limit have a time.")
    return " ".join([
        *sentences,
        f"With any workspace allowed, {results.shown(results.subject)} wins {of(total.wins, total.of)} cases, "
        f"geometric mean {times(total.geometric)}; within the limit, {times(geometric_mean(rows.limited_speedup))}.",
    ])  # fmt: skip
