"""The tables of the paper: its networks, and its figures next to those of this device."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from harness.cases import catalogue
from harness.report.speedups import maximum
from harness.store.markdown import NONE, markdown, share, times
from harness.sweep.comparisons import Results, grouped, summarise

# The figures of the paper's section 4.2: one V100, cuDNN 7.1, 602 configurations. Other means are arithmetic.
PAPER = (
    ("configurations won", share(50, 602)),
    ("geometric mean of the speedup", NONE),
    ("mean speedup of the configurations won", "1.46x"),
    ("1x1, batch 1: mean speedup", "1.23x"),
    ("1x1, batch 1: maximum", "2.29x (7-32-832)"),
    ("5x5, batch 1: mean speedup", "1.36x"),
    ("5x5, batch 1: maximum", "1.97x"),
)


def networks_table() -> str:
    """The paper's Table 1, from the catalogue: the stride-1 layers of each network that the paper measures."""
    cases = catalogue.load_sweep("paper").cases
    layers = list(dict.fromkeys(case.layer for case in cases))
    networks = sorted({network for layer in layers for network in layer.networks})
    filters = sorted({layer.k for layer in layers})
    columns = [_network_column([layer for layer in layers if name in layer.networks], filters) for name in networks]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    batches = len({case.batch for case in cases})
    note = f"Together {len(layers)} distinct layers; with {batches} batch sizes {len(cases)} configurations."
    return markdown(["", *networks], rows) + f"\n\n{note}"


def _network_column(layers: list[catalogue.Layer], filters: list[int]) -> dict[str, str]:
    smallest = min(layer.h for layer in layers)
    deepest = max((layer for layer in layers if layer.h == smallest), key=lambda layer: layer.c)
    number = Counter(layer.k for layer in layers)
    return {
        "distinct layers": str(len(layers)),
        **{f"{k}x{k} filters": f"{number[k]} ({number[k] / len(layers):.1%})" for k in filters},
        "input H and W": f"{smallest} to {max(layer.h for layer in layers)}",
        "filters M": f"{min(layer.m for layer in layers)} to {max(layer.m for layer in layers)}",
        "input channels C": f"{min(layer.c for layer in layers)} to {max(layer.c for layer in layers)}",
        "smallest input, at its deepest": f"{deepest.h}x{deepest.w}x{deepest.c}",
    }


def paper_table(results: Results) -> str:
    """The paper's figures on its V100, and the same figures of each subject here."""
    subjects = dict(grouped(results.compared, "subject"))
    mine = [_paper_figures(rows) for rows in subjects.values()]
    body = [[label, figure, *(figures[i] for figures in mine)] for i, (label, figure) in enumerate(PAPER)]
    return markdown(["", "paper (V100)", *map(results.shown, subjects)], body)


def _paper_figures(rows: pd.DataFrame) -> list[str]:
    """The figures of one subject, in the order of PAPER."""
    total, won = summarise(rows), summarise(rows[rows.speedup > 1])
    figures = [share(total.wins, total.of), times(total.geometric), times(won.arithmetic)]
    for k in (1, 5):
        single = summarise(rows[(rows.k == k) & (rows.kw == k) & (rows.batch == 1)])
        figures += [times(single.arithmetic), maximum(single)]
    return figures
