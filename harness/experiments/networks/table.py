"""The tables of whole networks: times and errors of cuConv against the best of torch, and kernels by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    TORCH_CONTENDERS,
    TORCH_FASTEST_ENGINES,
    KernelsOfKind,
    label,
)
from harness.precision import FP16, FP32, TF32
from harness.store.markdown import NONE, markdown, of, times
from harness.store.table import Table
from harness.sweep.comparisons import Results, each, geometric_mean
from harness.sweep.provenance import provenance

Shown = TypeVar("Shown", str, list[str])  # what a page shows of rows; empty where they have none of it
FIGURE = "networks"  # plots/DEVICE/networks/networks.png
COMPARED = ("network", "batch", "torch", "torch_us", "cuconv_us", "torch_tf32_us", "cuconv_tf32_us")
RATIOS = ("speedup", "over_tf32", "both_tf32")


@dataclass(frozen=True, slots=True)
class Entry:
    """Contenders in a precision, the fastest of which is compared."""

    contenders: tuple[str, ...]
    precision: str

    def fastest(self, case: pd.DataFrame) -> tuple[str, float]:
        """The fastest contender among the rows of a case, and its microseconds; "" and NaN where none has a time."""
        return _fastest(case, self.contenders, self.precision)


@dataclass(frozen=True, slots=True)
class Beside:
    """A network and batch: the fastest of torch in FP32, of a baseline and of cuConv, in microseconds.

    who: the contender of the baseline.
    """

    network: str
    batch: int
    torch_us: float
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


def networks_results(results_of_device: Path, table: Table = NETWORKS) -> Results | None:
    """The rows of results/DEVICE/networks/networks.csv, or of another table; None where it does not exist."""
    frame, folder = table.find(results_of_device), results_of_device / table.folder
    return None if frame is None else Results(results_of_device.name, table.folder, frame, folder)


def compare_networks(frame: pd.DataFrame) -> pd.DataFrame:
    """A row of COMPARED and three ratios for each network and batch, from rows of networks.csv in mode graph.

    torch_us is the smallest mean of torch's contenders in FP32, of the one named `torch`; torch_tf32_us is that with
    TF32 allowed. cuconv_us and cuconv_tf32_us are of the converted model. speedup is cuConv over torch, both in FP32.
    over_tf32 is cuConv in FP32 over torch with TF32 allowed, both_tf32 cuConv in TF32 over that. NaN: no time.
    """
    rows = frame[frame["mode"] == GRAPH].copy()
    rows["named"] = [label(row.network, row.source) for row in each(rows)]
    found = []
    for network in dict.fromkeys(rows.named):
        for batch in sorted(rows[rows.named == network].batch.unique()):
            case = rows[(rows.named == network) & (rows.batch == batch)]
            who, torch_us = _fastest(case, TORCH_CONTENDERS, FP32)
            others = [_fastest(case, *which)[1] for which in (
                ((CUCONV,), FP32), (TORCH_CONTENDERS, TF32), ((CUCONV,), TF32))]  # fmt: skip
            found.append([network, int(batch), who, torch_us, *others])
    compared = pd.DataFrame(found, columns=list(COMPARED))
    compared["speedup"] = compared.torch_us / compared.cuconv_us
    compared["over_tf32"] = compared.torch_tf32_us / compared.cuconv_us
    compared["both_tf32"] = compared.torch_tf32_us / compared.cuconv_tf32_us
    return compared


def _fastest(case: pd.DataFrame, contenders: tuple[str, ...], precision: str) -> tuple[str, float]:
    """The contender of the smallest mean, and that mean; "" and NaN where none has a time."""
    return least(case[case.status == OK], contenders, precision, "mean_us")


def least(case: pd.DataFrame, contenders: tuple[str, ...], precision: str, column: str) -> tuple[str, float]:
    """The contender of the smallest value in a column, and that value; "" and NaN where none has a row."""
    rows = case[case.contender.isin(contenders) & (case.precision == precision)]
    if rows.empty:
        return "", float("nan")
    at = int(rows[column].to_numpy(float).argmin())
    return str(rows.contender.iloc[at]), float(rows[column].iloc[at])


def networks_table(frame: pd.DataFrame) -> str:
    """A line for each network and batch, in microseconds of a forward in a CUDA graph, and a line of geometric means.

    Empty where nothing can be compared: no case has times of cuConv and of torch.
    """
    compared = compare_networks(frame)
    compared = compared.dropna(subset=list(RATIOS), how="all")
    if compared.empty:
        return ""
    body = [
        [row.network, row.batch, shown(row.torch_us), row.torch or NONE, shown(row.cuconv_us), times(row.speedup),
         shown(row.torch_tf32_us), times(row.over_tf32), shown(row.cuconv_tf32_us), times(row.both_tf32)]
        for row in each(compared)
    ]  # fmt: skip
    means = [times(geometric_mean(compared[ratio])) for ratio in RATIOS]
    wins = [of(int((compared[ratio] > 1).sum()), int(compared[ratio].notna().sum())) for ratio in RATIOS]
    for name, (fp32, over, both) in (("geometric mean", means), ("cases won", wins)):
        body.append([name, "", "", "", "", fp32, "", over, "", both])
    header = ["network", "batch", "best torch FP32, us", "which is", "cuConv FP32, us", "speedup",
              "best torch TF32, us", "torch TF32 / cuConv FP32", "cuConv TF32, us",
              "torch TF32 / cuConv TF32"]  # fmt: skip
    return markdown(header, body, left=(0, 3))


def networks_section(results_of_device: Path, plots: str) -> str:
    """The figure, the table and where it was measured; without a networks.csv a sentence says what to run.

    plots: the path of the figures' folder in links.
    """
    results = networks_results(results_of_device)
    table = networks_table(results.frame) if results else ""
    if not results or not table:
        return NETWORKS.missing(results_of_device.name)
    picture = _picture(results, plots)
    note = "Microseconds of a forward in a CUDA graph. Best torch: the fastest of its contenders that were measured."
    parts = [picture, note, table, f"Measured on {provenance(results)}."]
    return "\n\n".join(part for part in parts if part)


def _picture(results: Results, plots: str) -> str:
    figure = f"{plots}/{results.device}/{results.sweep}/{FIGURE}.png"
    return f"![Whole networks: speedup over torch]({figure})"


def modes_section(results_of_device: Path) -> str:
    """A line for each GPU, way to call cuConv and mode: its speedup over the fastest of torch in that mode.

    Geometric means and cases won, in FP32 over FP32 and in TF32 over TF32, of a device and then of the others in its
    folder. Without a networks.csv a sentence says what to run.
    """
    found = _on_each_gpu(results_of_device)
    if not found:
        return NETWORKS.missing(results_of_device.name)
    body = [
        [gpu, contender, mode, *cells]
        for gpu, results in found
        for contender in (CUCONV, CUCONV_ENABLED)
        for mode in MODES
        if (cells := _in_mode(results.frame, contender, mode))
    ]
    return markdown(["GPU", "contender", "mode", "FP32", "won", "TF32", "won"], body, left=(0, 1, 2))


def _in_mode(frame: pd.DataFrame, contender: str, mode: str) -> list[str]:
    """The mean speedup over the fastest of torch in a mode, and the cases won, in FP32 and in TF32; empty without."""
    found = [
        [case.speedup for case in beside(frame, Entry(TORCH_CONTENDERS, one), Entry((contender,), one), mode)]
        for one in (FP32, TF32)
    ]
    cells = [cell for one in found for cell in (times(geometric_mean(one)), of(_won(one), len(one)))]
    return cells if any(found) else []


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
    """The results of a device and a view of their rows, or those of the first other in its folder that is not empty."""
    for device in _devices(results_of_device):
        results = networks_results(device, of)
        if results and (found := view(results.frame)):
            return results, found
    return None, None


def _on_each_gpu(results_of_device: Path) -> list[tuple[str, Results]]:
    """The name of each GPU that has whole networks, and its results: a device, then the others in its folder."""
    found = (networks_results(device) for device in _devices(results_of_device))
    return [(provenance(results).partition(", ")[0], results) for results in found if results]


def _devices(results_of_device: Path) -> list[Path]:
    """The results of a device, then those of the others in its folder."""
    return list(dict.fromkeys((results_of_device, *sorted(results_of_device.parent.glob("*")))))


def engines_table(frame: pd.DataFrame) -> str:
    """A line for each network and batch of networks.csv: cuConv and cuDNN's fastest engines, FP32, CUDA graphs.

    Empty where nothing can be compared.
    """
    cases = beside(frame, ENGINES)
    cells = [[shown(case.torch_us), shown(case.baseline_us)] for case in cases]
    return _table_beside(cases, ["best torch, us", "cuDNN's fastest engines, us"], cells)


def half_table(frame: pd.DataFrame) -> str:
    """A line for each network and batch of networks.csv: cuConv in FP32 and torch in FP16, in CUDA graphs.

    Empty where nothing can be compared.
    """
    cases = beside(frame, HALF)
    cells = [[case.who, shown(case.baseline_us)] for case in cases]
    return _table_beside(cases, ["best torch in FP16", "us"], cells)


def _table_beside(cases: Sequence[Beside], header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A line for each case, with two cells of its baseline; header: of these."""
    if not cases:
        return ""
    body = [
        [case.network, case.batch, *of_baseline, shown(case.cuconv_us), times(case.speedup)]
        for case, of_baseline in zip(cases, cells, strict=True)
    ]
    mean, won, _ = _summary(cases)
    body += [["geometric mean", "", "", "", "", mean], ["cases won", "", "", "", "", won]]
    return markdown(["network", "batch", *header, "cuConv in FP32, us", "speedup"], body)


def beside(frame: pd.DataFrame, baseline: Entry, ours: Entry = CONVERTED, mode: str = GRAPH) -> list[Beside]:
    """Each network and batch of networks.csv that has times of a baseline and of ours in a mode."""
    found = []
    for _, case in frame[frame["mode"] == mode].groupby(["network", "source", "batch"], sort=False):
        first, (who, baseline_us), (_, cuconv_us) = case.iloc[0], baseline.fastest(case), ours.fastest(case)
        if not isnan(baseline_us / cuconv_us):
            name, torch_us = label(first.network, first.source), TORCH.fastest(case)[1]
            found.append(Beside(name, int(first.batch), torch_us, who, baseline_us, cuconv_us))
    return found


def summary_beside(frame: pd.DataFrame, baseline: Entry) -> list[str]:
    """Cells on `beside`: the number of cases, the geometric mean, the cases won, the smallest speedup.

    Empty without a case.
    """
    cases = beside(frame, baseline)
    return [str(len(cases)), *_summary(cases)] if cases else []


def _summary(cases: Sequence[Beside]) -> list[str]:
    speedups, least = [case.speedup for case in cases], min(cases, key=lambda case: case.speedup)
    smallest = f"{times(least.speedup)} ({least.network}, batch {least.batch})"
    return [times(geometric_mean(speedups)), of(_won(speedups), len(cases)), smallest]


def _won(speedups: list[float]) -> int:
    return sum(speedup > 1 for speedup in speedups)


def errors_section(results_of_device: Path) -> str:
    """A line for each GPU and network: the largest relative L2 error over batches and modes, of cuConv and of torch.

    A device is followed by the others in its folder. Without a networks.csv a sentence says what to run.
    """
    found = _on_each_gpu(results_of_device)
    if not found:
        return NETWORKS.missing(results_of_device.name)
    body = [[gpu, *cells] for gpu, results in found for cells in _errors(results.frame)]
    header = ["GPU", "network", "cuConv FP32", "torch FP32", "cuConv TF32", "torch TF32", "torch FP16"]
    return markdown(header, body, left=(0, 1))


def _errors(frame: pd.DataFrame) -> list[list[str]]:
    """Each network's name, and the largest errors of its rows in the columns of `errors_section`."""
    rows = frame[frame.status == OK].copy()
    rows["named"] = [label(row.network, row.source) for row in each(rows)]
    groups = [(names, precision) for precision in (FP32, TF32) for names in ((CUCONV,), TORCH_CONTENDERS)]
    groups.append((TORCH_CONTENDERS, FP16))
    found = []
    for network in sorted(set(rows.named)):
        mine = rows[rows.named == network]
        columns = [mine[mine.contender.isin(names) & (mine.precision == precision)] for names, precision in groups]
        found.append([network, *(f"{one.rel_l2_error.max():.1e}" if len(one) else NONE for one in columns)])
    return found


def breakdown_table(rows: Iterable[KernelsOfKind]) -> str:
    """A line for each network, batch, contender and kind of kernel: launches and microseconds of a forward."""
    body = [
        [row.network, row.batch, row.contender, row.precision, row.kind, f"{row.kernels:g}", shown(row.us)]
        for row in rows
    ]
    return markdown(["network", "batch", "contender", "precision", "kind", "kernels", "us"], body, left=(0, 2, 3, 4))


def shown(value: float, digits: int = 1) -> str:
    """A number of a table with `digits` digits behind the point; NONE for NaN."""
    return f"{value:.{digits}f}" if value == value else NONE
