"""The table that a reader sees first: whole networks and single layers against each baseline, by batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from harness.contenders.registry import AUTO_NHWC
from harness.experiments.networks.rows import CUCONV, GRAPH, TORCH_CONTENDERS
from harness.experiments.networks.table import (
    CONVERTED,
    CONVERTED_HALF,
    DEFAULT,
    ENGINES,
    HALF,
    TORCH,
    Entry,
    beside,
    paper_results,
)
from harness.precision import FP16, FP32, PRECISIONS, TF32
from harness.report.half import compare_with_half
from harness.store.markdown import NONE, Column, of, tabulate, times
from harness.store.times import COLD
from harness.sweep.comparisons import Results, compare, compare_with_tf32, geometric_mean, rivals, timed
from harness.sweep.provenance import are_of_one_measurement, last_day, model, provenance

BATCHES = (1, 8, 32)
FUSED_SWEEP = "bias_relu"  # the sweep of FUSED: the paper's layers with an epilogue, at BATCHES
MIXED = "\\*"
ENOUGH = 0.9  # the share of the most cases that a GPU has of a comparison, to be shown


@dataclass(frozen=True)
class Line:
    """A comparison with a baseline.

    precision: ours. compare: a row for each case with batch and speedup, from the layers or the networks of a GPU.
    rows: the measurements of ours and of the baseline, from the same.
    """

    precision: str
    baseline: str
    compare: Callable[[Results], pd.DataFrame]
    rows: Callable[[Results], pd.DataFrame]


def _networks(baseline: str, theirs: Entry, ours: Entry = CONVERTED) -> Line:
    def compare(results: Results) -> pd.DataFrame:
        cases = [(case.batch, case.speedup) for case in beside(results.frame, theirs, ours)]
        return pd.DataFrame(cases, columns=["batch", "speedup"])

    def rows(results: Results) -> pd.DataFrame:
        frame = results.frame[results.frame["mode"] == GRAPH]
        of = [frame.contender.isin(one.contenders) & (frame.precision == one.precision) for one in (ours, theirs)]
        return frame[of[0] | of[1]]

    return Line(ours.precision, baseline, compare, rows)


def _layers(
    precision: str,
    baseline: str,
    compare: Callable[[Results], pd.DataFrame],
    precisions: tuple[str, ...] = (FP32,),
    named: tuple[str, ...] = (),
    with_rivals: bool = True,
) -> Line:
    """The baseline is, in some precisions, of the rivals, of contenders by their names, or of both."""

    def rows(results: Results) -> pd.DataFrame:
        mine = timed(results.frame, precision)
        mine = mine[(mine.provider == results.comparison.provider) & (mine.algorithm == results.subject)]
        theirs = timed(results.frame, *precisions)
        found = [mine, theirs[theirs.provider.isin(named)]]
        return pd.concat([*found, rivals(theirs, results.comparison)] if with_rivals else found)

    return Line(precision, baseline, compare, rows)


def _over(*columns: str) -> Callable[[Results], pd.DataFrame]:
    """A comparison with the least of some columns of `compare`, on the cases that have a time in the last one."""

    def compare(results: Results) -> pd.DataFrame:
        cases = results.of_subject()
        cases = cases[cases[columns[-1]].notna()]
        return cases.assign(speedup=cases[list(columns)].min(axis=1) / cases.mean_us)

    return compare


def _cold(results: Results) -> pd.DataFrame:
    return results.at(COLD).of_subject()


def _alike(precision: str) -> Callable[[Results], pd.DataFrame]:
    """A comparison in which the rivals have the precision of cuConv."""

    def compare_alike(results: Results) -> pd.DataFrame:
        cases = compare(results, precision, (precision,))
        return cases[cases.subject == results.subject]

    return compare_alike


def _in_channels_last(line: Line) -> Line:
    """The comparison of cuConv's float32 tensors in channels last; the rivals have either order."""

    def of(take: Callable[[Results], pd.DataFrame]) -> Callable[[Results], pd.DataFrame]:
        return lambda results: take(replace(results, chosen=(results.comparison.provider, AUTO_NHWC)))

    return replace(line, compare=of(line.compare), rows=of(line.rows))


NETWORKS = (
    _networks("fastest of torch in FP32", TORCH),
    _networks("cuDNN's fastest engines in FP32", ENGINES),
    _networks("plain torch: TF32, its default", DEFAULT),
    _networks("fastest of torch in TF32", Entry(TORCH_CONTENDERS, TF32)),
    _networks("fastest of torch in TF32", Entry(TORCH_CONTENDERS, TF32), Entry((CUCONV,), TF32)),
    _networks("fastest of torch in FP16", HALF),
    _networks("fastest of torch in FP16", HALF, CONVERTED_HALF),
)
LAYERS = (
    _layers(FP32, "best cuDNN in FP32", Results.of_subject),
    _layers(FP32, "the same, L2 flushed before each call", _cold),
    _layers(FP32, "CUTLASS in FP32 (3xTF32)", _over("cutlass_us"), named=("cutlass",), with_rivals=False),
    _layers(
        FP32,
        "best of cuDNN, cuBLAS, CUTLASS",
        _over("rival_us", "cublas_us", "cutlass_us"),
        named=("cublas", "cutlass"),
    ),
    _layers(FP32, "best cuDNN in TF32", compare_with_tf32, PRECISIONS),
    _layers(TF32, "best cuDNN in TF32", partial(compare_with_tf32, ours=TF32), PRECISIONS),
    _in_channels_last(_layers(TF32, "best cuDNN in TF32, cuConv on channels_last", _alike(TF32), (TF32,))),
    _layers(FP32, "best cuDNN in FP16", compare_with_half, (FP16,)),
    _layers(FP16, "best cuDNN in FP16", _alike(FP16), (FP16,)),
)
FUSED = (
    _layers(FP32, "best cuDNN in FP32, bias and ReLU in both calls", Results.of_subject),
    _layers(FP16, "best cuDNN in FP16, bias and ReLU in both calls", _alike(FP16), (FP16,)),
)


def front_table(found: Sequence[Results]) -> str:
    """A line for each comparison, with geometric means by batch and of all, and the cases won.

    It is of the GPU of the latest rows, among those that have nearly as many cases as any.

    found: the paper's sweep on each GPU. Sentences below say where and when the rows were measured, and which lines
    have rows of several codes, versions or kinds of machine.
    """
    devices = sorted(found[0].folder.parents[1].glob("*/"))
    networks = [whole for device in devices if (whole := paper_results(device))]
    fused = [sweep for results in found if (sweep := results.beside(FUSED_SWEEP))]
    lines = [
        *_lines("whole networks", NETWORKS, networks),
        *_lines("single layers", LAYERS, found),
        *_lines("single layers", FUSED, fused),
    ]
    if not lines:
        return NONE
    columns: list[Column] = [
        ("cuConv in", lambda one: one[0].precision.upper()),
        ("against", lambda one: one[0].baseline + (MIXED if _is_mixed(*one[:2]) else "")),
        ("GPU", lambda one: model(one[1])),
        *((f"batch {batch}", lambda one, batch=batch: _mean(one[2][one[2].batch == batch])) for batch in BATCHES),
        ("all batches", lambda one: _mean(one[2])),
        ("won", lambda one: of(int((one[2].speedup > 1).sum()), len(one[2]))),
    ]
    measured = dict.fromkeys(f"{what} on {_provenance(results, lines)}" for what, (_, results, _) in lines)
    mixed = any(_is_mixed(line, results) for _, (line, results, _) in lines)
    parts = [
        tabulate("speedup", lines, columns, left=(0, 1, 2, 3)),
        "Measured:\n\n" + "\n".join(f"- {one}" for one in measured),
    ]
    if mixed:
        parts.append(f"{MIXED} Its rows were not all measured with the same code, versions and kind of machine.")
    return "\n\n".join(parts)


def _lines(
    what: str, lines: Sequence[Line], found: Sequence[Results]
) -> list[tuple[str, tuple[Line, Results, pd.DataFrame]]]:
    """Each line with the latest of the results that have nearly as many cases of it as any, and these cases."""
    compared = []
    for line in lines:
        cases = [(line, results, rows[rows.speedup.notna()]) for results in found for rows in [line.compare(results)]]
        most = max((len(one[2]) for one in cases), default=0)
        if enough := [one for one in cases if len(one[2]) >= max(1, ENOUGH * most)]:
            compared.append((what, max(enough, key=lambda one: (last_day(one[1], line.rows(one[1])), len(one[2])))))
    return compared


def _provenance(results: Results, lines: Sequence[tuple[str, tuple[Line, Results, pd.DataFrame]]]) -> str:
    """Where and when those rows of a file were measured that any of the lines compares."""
    return provenance(results, pd.concat([line.rows(results) for _, (line, of, _) in lines if of is results]))


def _is_mixed(line: Line, results: Results) -> bool:
    return not are_of_one_measurement(results, line.rows(results))


def _mean(cases: pd.DataFrame) -> str:
    return times(geometric_mean(cases.speedup))
