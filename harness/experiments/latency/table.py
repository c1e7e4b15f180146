"""The tables of a device's latency.csv: first results of new input sizes, and of new processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from harness.experiments.latency.rows import CACHES, CONTENDERS, CONVERT, CUCONV, LATENCY, SIZE, START
from harness.store.markdown import NONE, markdown
from harness.sweep.comparisons import Results
from harness.sweep.provenance import provenance

LABELS = {CUCONV: "cuConv"}  # in tables


def latency_sizes(results: Results) -> str:
    """The table of new sizes, from the latency.csv of the device; without rows, a sentence that says what to run.

    Raises ResultsError where the file is something else.
    """
    return _section(results, (SIZE,), sizes_table)


def latency_starts(results: Results) -> str:
    """The table of starts, from the latency.csv of the device; without rows, a sentence that says what to run.

    Raises ResultsError where the file is something else.
    """
    return _section(results, (START, CONVERT), starts_table)


def _section(results: Results, whats: Sequence[str], table: Callable[[pd.DataFrame], str]) -> str:
    frame = LATENCY.find(results.folder.parent)
    if frame is None or not frame.what.isin(whats).any():
        return LATENCY.missing(results.device)
    shown, folder = frame[frame.what.isin(whats)], results.folder.with_name(LATENCY.folder)
    measured = provenance(Results(results.device, LATENCY.folder, frame, folder), shown)
    return f"{table(shown)}\n\nMeasured on {measured}."


def sizes_table(frame: pd.DataFrame) -> str:
    """A line for each network, contender and state of the cache, in milliseconds; empty without rows of new sizes.

    Percentiles are interpolated between the two nearest sizes.
    """
    body = []
    for (network, contender, cache), rows in _groups(frame[frame.what == SIZE]):
        first = [rows.first_ms.quantile(share) for share in (0.5, 0.9, 1.0)]
        times = [f"{value:.2f}" for value in (*first, rows.second_ms.max(), rows.again_ms.median())]
        body.append([network, LABELS.get(contender, contender), cache, len(rows), *times])
    header = ["network", "contender", "compile cache", "sizes",
              "first ms, p50", "first ms, p90", "first ms, worst", "second ms, worst", "again ms, median"]  # fmt: skip
    return markdown(header, body, left=(0, 1, 2)) if body else ""


def starts_table(frame: pd.DataFrame) -> str:
    """A line for each network, contender and state of the cache, medians in seconds; empty without rows of starts."""
    body = []
    for (network, contender, cache), rows in _groups(frame[frame.what.isin([START, CONVERT])]):
        starts = rows[rows.what == START].first_ms
        shown = [_seconds(starts), len(starts) or NONE, _seconds(rows[rows.what == CONVERT].first_ms)]
        body.append([network, LABELS.get(contender, contender), cache, *shown])
    header = ["network", "contender", "compile cache", "start s, median", "starts", "convert s"]
    return markdown(header, body, left=(0, 1, 2)) if body else ""


def _groups(frame: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """The rows of each network, contender and state of the cache; networks are in the order of the file."""
    for network in dict.fromkeys(frame.network):
        for contender in CONTENDERS:
            for cache in CACHES:
                rows = frame[(frame.network == network) & (frame.contender == contender) & (frame.cache == cache)]
                if not rows.empty:
                    yield (network, contender, cache), rows


def _seconds(milliseconds: pd.Series) -> str:
    return f"{milliseconds.median() / 1000:.2f}" if len(milliseconds) else NONE
