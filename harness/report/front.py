"""The table that a reader sees first: whole networks and single layers against each baseline, by batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from harness.contenders import registry
from harness.experiments.networks.rows import CUCONV, TORCH_CONTENDERS
from harness.experiments.networks.table import CONVERTED, DEFAULT, ENGINES, HALF, TORCH, Entry, beside, networks_results
from harness.precision import FP16, FP32, PRECISIONS, TF32
from harness.report.half import compare_with_half
from harness.store.markdown import NONE, Column, of, tabulate, times
from harness.sweep.comparisons import Results, compare_with_tf32, geometric_mean
from harness.sweep.provenance import mixture_with_rivals, provenance

BATCHES = (1, 8, 32)
CUTLASS = "cutlass"
MIXED = "\\*"


@dataclass(frozen=True)
class Line:
    """A comparison with a baseline.

    precision: ours. compare: from the layers of a GPU, or its networks, a row for each case with batch and speedup.
    theirs: the precisions of the baseline, for single layers.
    """

    precision: str
    baseline: str
    compare: Callable[[Results], pd.DataFrame]
    theirs: tuple[str, ...] = ()


def _networks(baseline: Entry, ours: Entry = CONVERTED) -> Callable[[Results], pd.DataFrame]:
    def compare(results: Results) -> pd.DataFrame:
        cases = [(case.batch, case.speedup) for case in beside(results.frame, baseline, ours)]
        return pd.DataFrame(cases, columns=["batch", "speedup"])

    return compare


def _cutlass(results: Results) -> pd.DataFrame:
    rows = results.of_subject()
    return rows.assign(speedup=rows[f"{CUTLASS}_speedup"])


NETWORKS = (
    Line(FP32, "torch's default: TF32, NCHW", _networks(DEFAULT)),
    Line(FP32, "fastest of torch in FP32", _networks(TORCH)),
    Line(FP32, "cuDNN's fastest engines in FP32", _networks(ENGINES)),
    Line(FP32, "fastest of torch in TF32", _networks(Entry(TORCH_CONTENDERS, TF32))),
    Line(TF32, "fastest of torch in TF32", _networks(Entry(TORCH_CONTENDERS, TF32), Entry((CUCONV,), TF32))),
    Line(FP32, "fastest of torch in FP16", _networks(HALF)),
)
LAYERS = (
    Line(FP32, "best cuDNN in FP32", Results.of_subject, (FP32,)),
    Line(FP32, f"{registry.PROVIDERS[CUTLASS].label} in FP32 (3xTF32)", _cutlass, (FP32,)),
    Line(TF32, "best cuDNN in TF32", lambda results: compare_with_tf32(results, TF32), PRECISIONS),
    Line(FP32, "best cuDNN in FP16", compare_with_half, (FP16,)),
)


def front_table(found: Sequence[Results]) -> str:
    """A line for each comparison, of the first GPU that has it: geometric means by batch, of all, and the cases won.

    found: the paper's sweep on each GPU. Sentences below say where and when the rows were measured, and in which lines
    ours are of other code, versions or machine than the baseline's.
    """
    devices = sorted(found[0].folder.parents[1].glob("*/"))
    networks = [whole for device in devices if (whole := networks_results(device))]
    lines = [*_lines("whole networks", NETWORKS, networks), *_lines("single layers", LAYERS, found)]
    if not lines:
        return NONE
    columns: list[Column] = [
        ("cuConv in", lambda one: one[0].precision.upper()),
        ("against", lambda one: one[0].baseline + (MIXED if _is_mixed(one[1], one[0]) else "")),
        ("GPU", lambda one: _gpu(one[1])),
        *((f"batch {batch}", lambda one, batch=batch: _mean(one[2][one[2].batch == batch])) for batch in BATCHES),
        ("all batches", lambda one: _mean(one[2])),
        ("won", lambda one: of(int((one[2].speedup > 1).sum()), len(one[2]))),
    ]
    measured = dict.fromkeys(f"{what} on {provenance(results)}" for what, (_, results, _) in lines)
    parts = [tabulate("speedup", lines, columns, left=(0, 1, 2, 3)), f"Measured: {'; '.join(measured)}."]
    if any(_is_mixed(results, line) for _, (line, results, _) in lines):
        parts.append(f"{MIXED} cuConv and the baseline were measured with other code, versions or machines.")
    return "\n\n".join(parts)


def _lines(
    what: str, lines: Sequence[Line], found: Sequence[Results]
) -> list[tuple[str, tuple[Line, Results, pd.DataFrame]]]:
    """Each line with the first results that have the comparison, and its cases."""
    compared = []
    for line in lines:
        for results in found:
            cases = line.compare(results)
            if len(cases := cases[cases.speedup.notna()]):
                compared.append((what, (line, results, cases)))
                break
    return compared


def _is_mixed(results: Results, line: Line) -> bool:
    return bool(line.theirs and mixture_with_rivals(results, (line.precision,), line.theirs))


def _gpu(results: Results) -> str:
    """The GPU's model, such as "H100"."""
    return provenance(results).partition(", ")[0].removeprefix("NVIDIA ").partition(" ")[0]


def _mean(cases: pd.DataFrame) -> str:
    return times(geometric_mean(cases.speedup))
