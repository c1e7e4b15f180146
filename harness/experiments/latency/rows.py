"""latency.csv: one row per first result that was timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from harness.errors import ResultsError
from harness.store.csv_file import csv_text, read_csv, rows_of
from harness.store.files import write_whole

FOLDER, CSV = "latency", "latency.csv"  # in results/DEVICE
SIZE, START, CONVERT = WHATS = ("size", "start", "convert")
TORCH, CUCONV = CONTENDERS = ("torch", "cuconv")
NO_CACHE, EMPTY, FULL = CACHES = ("-", "empty", "full")

Group = tuple[str, str, str, str]  # what rows have in common that are measured in the same way
GROUP_COLUMNS = ("what", "network", "contender", "cache")
COLUMNS = (*GROUP_COLUMNS, "height", "width", "first_ms", "second_ms", "again_ms", "environment")
_TEXT = (*GROUP_COLUMNS, "environment")
REMEDY = "measure first with 'python -m harness.latency' on a GPU"


@dataclass(frozen=True, slots=True)
class Latency:
    """One row of latency.csv.

    what       "size": the first call of an input size. "start": a process from its start to its first result.
               "convert": cuconv.nn.convert
    cache      cuConv's compile cache at the start of the process, "empty" or "full"; "-" for torch
    first_ms   wall-clock milliseconds of the first result, or of convert
    second_ms  those of the next call, after the kernels that the first one asked for have been compiled
    again_ms   the median of the calls that follow; None, as second_ms, where there are none
    """

    what: str
    network: str
    contender: str
    cache: str
    height: int
    width: int
    first_ms: float
    second_ms: float | None = None
    again_ms: float | None = None
    environment: str = ""

    @property
    def group(self) -> Group:
        """The cells of GROUP_COLUMNS."""
        return self.what, self.network, self.contender, self.cache

    def cells(self) -> list[str]:
        """The row as text, in the order of COLUMNS."""
        return [_text(getattr(self, column)) for column in COLUMNS]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def read(path: Path) -> pd.DataFrame:
    """The rows of a latency.csv. Raises ResultsError where the file is missing or is something else."""
    return read_csv(path, COLUMNS, text=_TEXT, name=CSV, remedy=REMEDY)


class LatencyFile:
    """latency.csv of a folder. Newer rows replace all older rows of their group."""

    def __init__(self, folder: Path):
        """Raises ResultsError where the folder has another file of this name."""
        self.path = folder / CSV
        self._rows: list[list[str]] = []
        if self.path.exists():
            (_, header), *rows = rows_of(self.path)
            if tuple(header) != COLUMNS:
                raise ResultsError(
                    f"{self.path} has other columns than this version writes: move it away, or use --out"
                )
            self._rows = [cells for _, cells in rows]

    def replace(self, rows: Sequence[Latency]) -> None:
        """Write rows, in place of the older ones of their groups; without rows nothing changes."""
        groups = {row.group for row in rows}
        if groups:
            older = [cells for cells in self._rows if tuple(cells[: len(GROUP_COLUMNS)]) not in groups]
            self._rows = older + [row.cells() for row in rows]
            write_whole(self.path, csv_text(COLUMNS, self._rows))

    @property
    def environments(self) -> set[str]:
        """The identifiers of the environments that the rows were measured in."""
        return {cells[-1] for cells in self._rows}
