"""The tables of whole networks: times and errors of cuConv against the best of torch, and kernels by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import TypeVar

import pandas as pd

from harness.experiments.networks.rows import (
    CUCONV,
    CUCONV_ENABLED,
    GRAPH,
    MODES,
    NETWORKS,
    OK,
    PAPER_NETWORKS,
    TORCH_CONTENDERS,
    TORCH_FASTEST_ENGINES,
    TORCHVISION,
    KernelsOfKind,
    label,
)
from harness.precision import FP16, FP32, TF32
from harness.store.markdown import NONE, markdown, times
from harness.store.table import Table
from harness.sweep.comparisons import Results, each, geometric_mean
from harness.sweep.provenance import model, provenance

Shown = TypeVar("Shown", str, list[str])  # what a page shows of rows; empty where they have none of it
FIGURE = "networks"  # plots/DEVICE/networks/networks.png


@dataclass(frozen=True, slots=True)
class Entry:
    """Contenders in a precision, the fastest of which is compared."""

    contenders: tuple[str, ...]
    precision: str

    def fastest(self, case: pd.DataFrame) -> tuple[str, float]:
        """The fastest contender among the rows of a case, and its microseconds; "" and NaN where none has a time."""
        return least(case[case.status == OK], self.contenders, self.precision, "mean_us")


@dataclass(frozen=True, slots=True)
class Beside:
    """A network and batch: the fastest of a baseline and of cuConv, in microseconds.

    who: the contender of the baseline.
    """

    network: str
    batch: int
    who: str
    baseline_us: float
    cuconv_us: float

    @property
    def speedup(self) -> float:
        """The time of the baseline divided by that of cuConv."""
        return self.baseline_us / self.cuconv_us


TORCH, ENGINES = Entry(TORCH_CONTENDERS, FP32), Entry((TORCH_FASTEST_ENGINES,), FP32)
DEFAULT = Entry(("torch",), TF32)  # torch as it comes: convolutions in TF32, NCHW
HALF, CONVERTED = Entry(TORCH_CONTENDERS, FP16), Entry((CUCONV,), FP32)
CONVERTED_HALF = Entry((CUCONV,), FP16)


# What the first table compares: a title, an entry of torch and one of cuConv.
COMPARED = (
    ("cuConv in FP32, torch in FP32", TORCH, CONVERTED),
    ("cuConv in TF32, torch in TF32", Entry(TORCH_CONTENDERS, TF32), Entry((CUCONV,), TF32)),
    ("cuConv in FP16, torch in FP16", HALF, CONVERTED_HALF),
)


def networks_results(results_of_device: Path, table: Table = NETWORKS) -> Results | None:
    """The rows of results/DEVICE/networks/networks.csv, or of another table; None where it does not exist."""
    frame, folder = table.find(results_of_device), results_of_device / table.folder
    return None if frame is None else Results(results_of_device.name, table.folder, frame, folder)


def paper_results(results_of_device: Path, table: Table = NETWORKS) -> Results | None:
    """The rows of the paper's networks in networks.csv, or in another table; None where they have none.

    Means over networks are of these, so that no later measurement of another network changes them.
    """
    results = networks_results(results_of_device, table)
    if results is None:
        return None
    frame = results.frame[_of_paper(results.frame)]
    return None if frame.empty else replace(results, frame=frame)


def _of_paper(frame: pd.DataFrame) -> pd.Series[bool]:
    """The mask of the rows of the paper's networks."""
    return (frame.source == TORCHVISION) & frame.network.isin(PAPER_NETWORKS)


def least(case: pd.DataFrame, contenders: tuple[str, ...], precision: str, column: str) -> tuple[str, float]:
    """The contender of the smallest value in a column, and that value; "" and NaN where none has a row."""
    rows = case[case.contender.isin(contenders) & (case.precision == precision)]
    if rows.empty:
        return "", float("nan")
    at = int(rows[column].to_numpy(float).argmin())
    return str(rows.contender.iloc[at]), float(rows[column].iloc[at])


def networks_table(frame: pd.DataFrame) -> str:
    """The `grid` of torch and of the converted model for each of COMPARED: microseconds in CUDA graphs.

    frame: the rows of networks.csv. Those of the paper's networks come first, and others have grids of their own. Empty
    where nothing can be compared.
    """
    parts, of_paper = [], _of_paper(frame)
    for rows, whose in ((frame[of_paper], ""), (frame[~of_paper], "Other networks: ")):
        for title, theirs, ours in COMPARED:
            cases = beside(rows, theirs, ours)
            if cases:
                parts += [f"**{whose}{title}.** {_fastest_of_torch(cases)}", _grid_beside(cases)]
    return "\n\n".join(parts)


def _fastest_of_torch(cases: Iterable[Beside]) -> str:
    """The sentence that says in how many cells each contender of torch is the fastest, the most frequent first."""
    counts = Counter(case.who for case in cases if case.who)
    found = ", ".join(f"`{name}` in {count}" for name, count in counts.most_common())
    return f"Cells in which each contender is the fastest of torch: {found or NONE}."


def grid(cases: Iterable[tuple[str, int, float, float]], digits: int = 0, won: bool = True) -> str:
    """Networks x batches: a ratio and its two values. The last line has geometric means.

    cases: (network, batch, numerator, denominator). digits: behind the point of a value. won: the means are followed by
    the cases of a ratio above 1, of all. Empty without cases.
    """
    frame = pd.DataFrame(list(cases), columns=["network", "batch", "above", "below"])
    if frame.empty:
        return ""
    frame["ratio"] = frame.above / frame.below

    def mean(rows: pd.DataFrame) -> str:
        wins = f", {_won(list(rows.ratio))}/{len(rows)}" if won else ""
        return f"{times(geometric_mean(rows.ratio))}{wins}"

    def cell(rows: pd.DataFrame) -> str:
        values = (f"{times(row.ratio)} ({row.above:.{digits}f}/{row.below:.{digits}f})" for row in each(rows))
        return next(values, NONE)

    batches = sorted(set(frame.batch))
    of_batch = {batch: frame[frame.batch == batch] for batch in batches}
    body = [
        [name, *(cell(rows[rows.network == name]) for rows in of_batch.values())]
        for name in dict.fromkeys(frame.network)
    ]
    body.append([f"geometric mean; all: {mean(frame)}", *map(mean, of_batch.values())])
    return markdown(["network", *(f"batch {batch}" for batch in batches)], body)


def networks_section(results_of_device: Path, plots: str) -> str:
    """The figure, the table and where it was measured; without a networks.csv a sentence says what to run.

    plots: the path of the figures' folder in links.
    """
    results = networks_results(results_of_device)
    table = networks_table(results.frame) if results else ""
    if not results or not table:
        return NETWORKS.missing(results_of_device.name)
    picture = _picture(results, plots) if paper_results(results_of_device) else ""
    note = (
        "A cell has the speedup, and the microseconds of torch and of cuConv in a CUDA graph. A batch that was not "
        "measured has no column."
    )
    parts = [picture, note, table, f"Measured on {provenance(results)}."]
    return "\n\n".join(part for part in parts if part)


def _picture(results: Results, plots: str) -> str:
    figure = f"{plots}/{results.device}/{results.sweep}/{FIGURE}.png"
    return f"![Whole networks: speedup over torch]({figure})"


def modes_section(results_of_device: Path) -> str:
    """A line for each way to call cuConv and mode: its speedup over the fastest of torch in that mode, on each GPU.

    Geometric means and cases won, in FP32 over FP32 and in TF32 over TF32, of a device and then of the others in its
    folder. Without a networks.csv a sentence says what to run.
    """
    found = _on_each_gpu(results_of_device, paper_results)
    if not found:
        return NETWORKS.missing(results_of_device.name)
    body = []
    for contender in (CUCONV, CUCONV_ENABLED):
        for mode in MODES:
            cells = [cell for _, results in found for cell in _in_mode(results.frame, contender, mode)]
            if set(cells) != {NONE}:
                body.append([contender, mode, *cells])
    header = [f"{gpu}, {precision.upper()}" for gpu, _ in found for precision in (FP32, TF32)]
    return markdown(["contender", "mode", *header], body, left=(0, 1))


def _in_mode(frame: pd.DataFrame, contender: str, mode: str) -> list[str]:
    """The mean speedup over the fastest of torch in a mode and the cases won, in FP32 and in TF32."""
    found = [
        [case.speedup for case in beside(frame, Entry(TORCH_CONTENDERS, one), Entry((contender,), one), mode)]
        for one in (FP32, TF32)
    ]
    return [f"{times(geometric_mean(one))}, {_won(one)}/{len(one)}" if one else NONE for one in found]


def engines_section(results_of_device: Path) -> str:
    """The table of `engines_table` and where it was measured; where there is none a sentence says what to run."""
    command = f"--contender {TORCH_FASTEST_ENGINES} {CUCONV}"
    return _section_beside(results_of_device, engines_table, (FP32,), command)


def half_section(results_of_device: Path) -> str:
    """The table of `half_table` and where it was measured; where there is none a sentence says what to run."""
    return _section_beside(results_of_device, half_table, (FP32, FP16), f"--precision {FP32} {FP16}")


def _section_beside(
    results_of_device: Path, table_of: Callable[[pd.DataFrame], str], precisions: tuple[str, ...], command: str
) -> str:
    results, table = first_of_devices(results_of_device, NETWORKS, table_of)
    if not results:
        return f"{NETWORKS.missing(results_of_device.name)[:-1]}, with {command}."
    return f"{table}\n\nMeasured on {provenance(results, results.frame[results.frame.precision.isin(precisions)])}."


def first_of_devices(
    results_of_device: Path, of: Table, view: Callable[[pd.DataFrame], Shown]
) -> tuple[Results | None, Shown | None]:
    """The paper's networks on a device and a view of their rows, or on the first other where it is not empty."""
    for device in _devices(results_of_device):
        results = paper_results(device, of)
        if results and (found := view(results.frame)):
            return results, found
    return None, None


def _on_each_gpu(results_of_device: Path, of: Callable[[Path], Results | None]) -> list[tuple[str, Results]]:
    """The model of each GPU that has whole networks, and its results: a device, then the others in its folder."""
    found = (of(device) for device in _devices(results_of_device))
    return [(model(results), results) for results in found if results]


def _devices(results_of_device: Path) -> list[Path]:
    """The results of a device, then those of the others in its folder."""
    return list(dict.fromkeys((results_of_device, *sorted(results_of_device.parent.glob("*")))))


def engines_table(frame: pd.DataFrame) -> str:
    """The `grid` of cuDNN's fastest engines and cuConv in networks.csv: FP32, microseconds in CUDA graphs."""
    return _grid_beside(beside(frame, ENGINES))


def half_table(frame: pd.DataFrame) -> str:
    """The `grid` of torch in FP16 and cuConv in FP32 in networks.csv: microseconds in CUDA graphs."""
    cases = beside(frame, HALF)
    table = _grid_beside(cases)
    return f"{table}\n\n{_fastest_of_torch(cases)}" if table else ""


def _grid_beside(cases: Sequence[Beside]) -> str:
    return grid((case.network, case.batch, case.baseline_us, case.cuconv_us) for case in cases)


def beside(frame: pd.DataFrame, baseline: Entry, ours: Entry = CONVERTED, mode: str = GRAPH) -> list[Beside]:
    """Each network and batch of networks.csv that has times of a baseline and of ours in a mode."""
    found = []
    for _, case in frame[frame["mode"] == mode].groupby(["network", "source", "batch"], sort=False):
        first, (who, baseline_us), (_, cuconv_us) = case.iloc[0], baseline.fastest(case), ours.fastest(case)
        if not isnan(baseline_us / cuconv_us):
            found.append(Beside(label(first.network, first.source), int(first.batch), who, baseline_us, cuconv_us))
    return found


def _won(speedups: list[float]) -> int:
    return sum(speedup > 1 for speedup in speedups)


def errors_section(results_of_device: Path) -> str:
    """A line for each network: the largest relative L2 error over batches and modes, of cuConv and of torch.

    It is of the GPU with the most rows. Without a networks.csv a sentence says what to run.
    """
    found = _on_each_gpu(results_of_device, networks_results)
    if not found:
        return NETWORKS.missing(results_of_device.name)
    _, results = max(found, key=lambda one: len(one[1].frame))
    header = ["network", "cuConv FP32, 1e-7", "torch FP32, 1e-7", "cuConv TF32, 1e-3", "torch TF32, 1e-3",
              "cuConv FP16, 1e-3", "torch FP16, 1e-3"]  # fmt: skip
    return f"{markdown(header, _errors(results.frame))}\n\nMeasured on {provenance(results)}."


def _errors(frame: pd.DataFrame) -> list[list[str]]:
    """Each network's name, and the largest errors of its rows in the columns of `errors_section`."""
    rows = frame[frame.status == OK].copy()
    rows["named"] = [label(row.network, row.source) for row in each(rows)]
    groups = [(names, precision) for precision in (FP32, TF32, FP16) for names in ((CUCONV,), TORCH_CONTENDERS)]
    found = []
    for network in sorted(set(rows.named)):
        mine = rows[rows.named == network]
        largest = [
            float(mine[mine.contender.isin(names) & (mine.precision == precision)].rel_l2_error.max())
            / (1e-7 if precision == FP32 else 1e-3)
            for names, precision in groups
        ]
        found.append([network, *map(decimal, largest)])
    return found


def breakdown_table(rows: Iterable[KernelsOfKind]) -> str:
    """A line for each network, batch, contender and kind of kernel: launches and microseconds of a forward."""
    body = [
        [row.network, row.batch, row.contender, row.precision, row.kind, f"{row.kernels:g}", decimal(row.us)]
        for row in rows
    ]
    return markdown(["network", "batch", "contender", "precision", "kind", "kernels", "us"], body, left=(0, 2, 3, 4))


def decimal(value: float, digits: int = 1) -> str:
    """A number of a table with `digits` digits behind the point; NONE for NaN."""
    return f"{value:.{digits}f}" if value == value else NONE
